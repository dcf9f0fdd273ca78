"""Profiles and models: those that come with the program, and those that users named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from api.answers import (
    Cursor,
    IfMatch,
    IfNoneMatch,
    Limit,
    etag,
    idempotency,
    json_response,
    sliced,
    tags,
)
from api.body import JSON_TYPES
from api.generate import LONGEST_SLUG
from api.problems import SLUG, ProblemError
from api.schemas import Imported, Model, ModelPage, ProfileFile, ProfilePage, Summary
from api.uploads import imported, read_profile
from api.wire import (
    IdempotencyKey,
    Me,
    Routes,
    Slug,
    in_thread,
    object_body,
    parts_of,
    raw_body,
)
from domino_tune.base.errors import PreconditionError
from domino_tune.measure.importers.rates import UNITS
from domino_tune.requests import ProfilesImportRequest
from domino_tune.results import to_json
from domino_tune.service.encoding import json_bytes
from domino_tune.service.idempotency import Idempotency
from domino_tune.service.library import ANY, Library, StoredModel
from domino_tune.store.profiles import FiledProfile
from simulator.dtypes import DTYPE_BYTES

routes: Final = Routes("profiles")
Base = Annotated[
    str, Query(pattern=SLUG, max_length=LONGEST_SLUG, description="Profile to start from, by name.")
]
Format = Annotated[
    str, Query(max_length=64, description="What the table is, say nccl-tests or gemm-csv.")
]
Operation = Annotated[
    str | None,
    Query(max_length=64, description="Collective that was timed, where the table does not say."),
]
Count = Annotated[int | None, Query(ge=1, le=1 << 20)]
Ctas = Annotated[int, Query(ge=0, le=64, description="NCCL CTAs it was timed with.")]
Unit = Annotated[
    str | None,
    Query(
        json_schema_extra={"enum": list(UNITS)},
        max_length=2,
        description="Unit of the column `us`, where it is not microseconds.",
    ),
]
Dtype = Annotated[
    str,
    Query(
        json_schema_extra={"enum": list(DTYPE_BYTES)},
        max_length=8,
        description="Type of the elements.",
    ),
]


@routes.route("GET", "/v1/profiles", scope="read", returns=ProfilePage)
async def list_profiles(
    request: Request, caller: Me, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """All profiles by name, those that come with the program included."""
    found = await in_thread(parts_of(request).library.list)
    return sliced(found, lambda one: one.name, to_json, cursor, limit)


@routes.route("GET", "/v1/profiles/{name}", scope="read", returns=ProfileFile)
async def get_profile(request: Request, caller: Me, name: Slug) -> Response:
    """A profile's file; its ETag is the id of its content."""
    content_id, body = await in_thread(parts_of(request).library.get, name)
    return json_response(body, headers={"ETag": etag(content_id)})


@routes.route(
    "PUT", "/v1/profiles/{name}", scope="admin", returns=Summary, also={201: Summary},
    problems=(409, 412, 428),
)  # fmt: skip
async def put_profile(
    request: Request,
    caller: Me,
    name: Slug,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    body: Any = raw_body(JSON_TYPES),
) -> Response:
    """Keep a profile file under the name that it calls itself. Replacing another content needs
    its ETag in If-Match."""
    parts = parts_of(request)
    store = _conditional_put(parts.library, name, caller.owner, if_match, if_none_match)
    profile = await parts.quick.computed(caller.owner, read_profile, body)
    content_id, created = await in_thread(store, profile, None, None)
    summary = json_bytes(to_json(profile.summary))
    status = 201 if created else 200
    return json_response(summary, status=status, headers={"ETag": etag(content_id)})


@routes.route(
    "DELETE", "/v1/profiles/{name}", scope="admin", status=204, problems=(409, 412)
)  # fmt: skip
async def delete_profile(
    request: Request, caller: Me, name: Slug, if_match: IfMatch = None
) -> Response:
    """Forget a name; jobs that were made on it keep what they need."""
    library = parts_of(request).library
    await in_thread(lambda: library.delete(name, if_match=_match(library, name, if_match)))
    return Response(status_code=204)


@routes.route(
    "POST", "/v1/profiles/{name}/import", scope="admin", returns=Imported, also={201: Imported},
    problems=(409, 412, 428),
)  # fmt: skip
async def import_profile(
    request: Request,
    caller: Me,
    name: Slug,
    format: Format,
    into: Base,
    op: Operation = None,
    nodes: Count = None,
    ranks_per_node: Count = None,
    ctas: Ctas = 0,
    dtype: Dtype = "bf16",
    unit: Unit = None,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    idempotency_key: IdempotencyKey = None,
    body: Any = raw_body(),
) -> Response:
    """Add others' measurements, the table in the body, to a copy of the profile `into`, kept under
    this name. Replacing a profile needs its ETag in If-Match; to add a further table to it, import
    `into` the name itself."""
    asked = ProfilesImportRequest(
        file="table", format=format, into=into, name=name, op=op, nodes=nodes,
        ranks_per_node=ranks_per_node, ctas=ctas, dtype=dtype, unit=unit,
    )  # fmt: skip
    library = parts_of(request).library
    store = _conditional_put(library, name, caller.owner, if_match, if_none_match)
    key = idempotency(request, caller, idempotency_key)
    # An earlier answer first: this import may have replaced `into`.
    answer = None if key is None else await in_thread(library.earlier_answer, key)
    if answer is None:
        base = await in_thread(library.file, asked.into)
        made, response = await parts_of(request).quick.computed(
            caller.owner, imported, asked, base, body
        )
        content_id, created = await in_thread(store, made, key, response)
        # Of simultaneous requests with one key one was stored, and all answer with that one.
        earlier = None if key is None else await in_thread(library.earlier_answer, key)
        answer = earlier or (content_id, created, response)
    content_id, created, response = answer
    status = 201 if created else 200
    return json_response(json_bytes(response), status=status, headers={"ETag": etag(content_id)})


Store = Callable[[FiledProfile, Idempotency | None, Mapping[str, Any] | None], tuple[str, bool]]
"""Store a profile, with a key and the response to store with it. Return the content id, and whether
the name is new."""


def _conditional_put(
    library: Library, name: str, owner: str, if_match: str | None, if_none_match: str | None
) -> Store:
    """Return a function that stores a profile under ``name`` where the conditions hold; without
    conditions it does not replace another content.

    Raise ProblemError 400 for a bad condition. The function raises PreconditionError, and
    ProblemError 428 where a condition is missing.
    """
    if if_none_match is not None and tags(if_none_match) != [ANY]:
        raise ProblemError(400, "If-None-Match of a PUT or POST can only be `*`.")

    def store(
        profile: FiledProfile, key: Idempotency | None, response: Mapping[str, Any] | None
    ) -> tuple[str, bool]:
        matching = _match(library, name, if_match)
        try:
            return library.put(
                name,
                profile,
                if_match=matching,
                if_none_match=ANY if matching is None else None,
                idempotency=key,
                response=response,
                owner=owner,
            )
        except PreconditionError:
            if if_match is not None or if_none_match is not None:
                raise
        current = library.get(name)[0]
        if current == profile.summary.content_id:
            return current, False
        raise ProblemError(
            428,
            f"There is a profile {name!r}: send its ETag in If-Match to replace it.",
            headers={"ETag": etag(current)},
        )

    return store


def _match(library: Library, name: str, if_match: str | None) -> str | None:
    """Return the content id that If-Match wants: of several the current one, where it is there."""
    wanted = tags(if_match)
    if not wanted:
        return None
    if len(wanted) == 1:
        return wanted[0]
    current = library.get(name)[0]
    return current if current in wanted else wanted[0]


# Models -------------------------------------------------------------------------------------------
# Presets, and Hugging Face configs that users named.

model_routes: Final = Routes("models")
Name = Annotated[
    str, Query(pattern=SLUG, max_length=LONGEST_SLUG, description="The model's name from now on.")
]


@model_routes.route("GET", "/v1/models", scope="read", returns=ModelPage)
async def list_models(
    request: Request, caller: Me, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """Presets, then the models that users added."""
    models = await in_thread(parts_of(request).library.list_models)
    return sliced(models, lambda one: one.name, _plain, cursor, limit)


@model_routes.route(
    "POST", "/v1/models", scope="admin", status=201, returns=Model, also={200: Model},
    problems=(409,),
)  # fmt: skip
async def add_model(
    request: Request,
    caller: Me,
    name: Name,
    idempotency_key: IdempotencyKey = None,
    body: Any = object_body(),
) -> Response:
    """Keep a Hugging Face config.json under a name; keys that do not affect its shape are ignored.
    200 if the name existed: from now on it means this model."""
    model, created = await in_thread(
        parts_of(request).library.put_model, name, body,
        idempotency=idempotency(request, caller, idempotency_key), owner=caller.owner,
    )  # fmt: skip
    path = f"{request.scope.get('root_path', '')}/v1/models/{name}"
    return json_response(
        json_bytes(_plain(model)), status=201 if created else 200, headers={"Location": path}
    )


@model_routes.route("DELETE", "/v1/models/{name}", scope="admin", status=204, problems=(409,))
async def delete_model(request: Request, caller: Me, name: Slug) -> Response:
    """Delete a model; jobs that were submitted with it keep it."""
    await in_thread(parts_of(request).library.delete_model, name)
    return Response(status_code=204)


def _plain(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "origin": model.origin,
        "parameters": model.spec.parameters,
        "model": asdict(model.spec),
        "notes": list(model.notes),
    }
