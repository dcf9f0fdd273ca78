"""Profiles of machines: named files, guarded by ETags, and tables that are imported into them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import anyio
from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from api.body import JSON_TYPES
from api.generate import LONGEST_SLUG
from api.jobs import Cursor, Limit, idempotency, json_response
from api.pages import sliced
from api.problems import ProblemError, bad_body
from api.representation import ZIPPED
from api.schemas import Imported, ProfileFile, ProfilePage, Summary
from api.uploads import read_upload
from api.wire import (
    SLUG,
    IdempotencyKey,
    Me,
    Routes,
    Slug,
    in_thread,
    parts_of,
    raw_body,
)
from domino_tune.base.errors import PreconditionError
from domino_tune.measure.importers.imported import text_of
from domino_tune.measure.importers.rates import UNITS
from domino_tune.requests import ProfilesImportRequest
from domino_tune.results.json_form import to_json
from domino_tune.service.encoding import json_bytes
from domino_tune.service.idempotency import Idempotency
from domino_tune.service.library import ANY, Library
from domino_tune.store.profiles import FiledProfile, filed
from domino_tune.verbs.profiles import imported_profile, replaced_rows
from simulator.specs import DTYPE_BYTES

routes: Final = Routes("profiles")
MOST_LINES: Final = 20_000
"""Most lines of a table, and rows of its section: every row is compared with all others."""
_BREAKS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Line breaks of str.splitlines, by which tables are parsed; CR LF counts as one."""
_TAG: Final = re.compile(r'\s*(W/)?"([\x21\x23-\x7e]*)"\s*(?:,|$)')
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match", max_length=500,
        description="ETag of what may be replaced; needed where one is there.",
    ),
]  # fmt: skip
IfNoneMatch = Annotated[
    str | None,
    Header(
        alias="If-None-Match", max_length=500,
        description="`*`: only where nothing is there.",
    ),
]  # fmt: skip
Base = Annotated[
    str,
    Query(pattern=SLUG, max_length=LONGEST_SLUG, description="Profile to start from, by name."),
]
Format = Annotated[
    str,
    Query(max_length=64, description="What the table is, say nccl-tests or gemm-csv."),
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
    profile = await in_thread(parts_of(request).library.get, name)
    return json_response(profile.body, headers={"ETag": etag(profile.content_id)})


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
    profile = await read_upload(body, parts.intake.uploads, parts.settings.quick_s)
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
    content_id, created, imported = await anyio.to_thread.run_sync(
        _import, library, asked, body, key, store, limiter=parts_of(request).intake.uploads
    )
    status = 201 if created else 200
    return json_response(json_bytes(imported), status=status, headers={"ETag": etag(content_id)})


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
        current = library.get(name).content_id
        if current == profile.content_id:
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
    current = library.get(name).content_id
    return current if current in wanted else wanted[0]


def _import(
    library: Library,
    asked: ProfilesImportRequest,
    data: bytes,
    key: Idempotency | None,
    store: Store,
) -> tuple[str, bool, dict[str, Any]]:
    earlier = None if key is None else library.earlier_answer(key)
    if earlier is not None:  # do not read `into`: this import replaced it where it is `name`
        return earlier
    text = text_of(data)
    if sum(map(text.count, _BREAKS)) - text.count("\r\n") > MOST_LINES:
        raise bad_body(f"A table may have {MOST_LINES:,} lines; split it.")
    base = library.profile(asked.into)
    made, imported = imported_profile(asked, base, data, most_rows=MOST_LINES)
    response = {
        "profile": {"name": made.name, "content_id": made.content_id},
        "section": imported.section,
        "rows": len(imported.rows),
        "replaced": replaced_rows(base, made, imported),
        "note": imported.note,
        "warnings": list(imported.warnings),
    }
    content_id, created = store(filed(made), key, response)
    # Of simultaneous requests with one key one was stored, and all answer with that one.
    earlier = None if key is None else library.earlier_answer(key)
    return earlier or (content_id, created, response)


def etag(content_id: str) -> str:
    """Return a content id as a strong ETag."""
    return f'"{content_id}"'


def tags(header: str | None) -> list[str]:
    """Return the content ids of If-Match or If-None-Match, or ``*``; weak tags match nothing.

    Raise ProblemError 400 for anything else (RFC 9110, section 13.1).
    """
    if header is None:
        return []
    if header.strip() == ANY:
        return [ANY]
    found, place = [], 0
    while place < len(header):
        tag = _TAG.match(header, place)
        if tag is None:
            raise ProblemError(400, 'If-Match and If-None-Match hold `*`, or tags like "sha256:…".')
        place = tag.end()
        if not tag[1]:
            found.append(tag[2].removesuffix(ZIPPED))
    return found or ["none"]
