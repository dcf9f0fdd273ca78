"""Add routes to FastAPI, and make the OpenAPI document with every answer that a route can give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import Depends, FastAPI, params
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_dependant
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from api.body import JSON_TYPES
from api.problems import MEDIA_TYPE, Problem, phrase
from api.wire import BodySpec, Declared, caller, only_query

# An example of each operation that takes more than a job's id; tests run them all -----------------
# The API's documentation shows each as a call of curl.

_WORKLOAD: Final = {
    "model": "llama2-7b", "profile": "h100-dgx", "tp": 8, "seq_length": 4096, "micro_batch_size": 4,
}  # fmt: skip
_TABLE: Final = "m,n,k,us\n4096,12288,4096,650\n8192,12288,4096,1280\n"
_CONFIG: Final = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 2048,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Example:
    """Values of parameters, and the body: JSON, a text, or the name of a ``file`` to send."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    file: str = ""


def _named(name: str, **more: Any) -> Example:
    return Example(parameters={"name": name, **more})


EXAMPLES: Final[Mapping[str, Example]] = {
    "submit_job": Example(body={"kind": "tune", **_WORKLOAD}),
    "label_job": Example(body={"label": "before the new switches"}),
    "simulate": Example(body={**_WORKLOAD, "row_slices": 2}),
    "what_if": Example(body={**_WORKLOAD, "change": ["link_bandwidth=2x"]}),
    "get_file": _named("plan"),
    "get_profile": _named("h100-dgx"),
    "put_profile": Example(parameters={"name": "my-machine"}, file="my-machine.json"),
    "import_profile": Example(
        parameters={"name": "my-gemms", "format": "gemm-csv", "into": "h100-dgx"}, body=_TABLE
    ),
    "delete_profile": _named("my-machine"),
    "add_model": Example(parameters={"name": "my-llama"}, body=_CONFIG),
    "delete_model": _named("my-llama"),
    "static_file": _named("docs.js"),
}  # fmt: skip
"""By the name of the operation."""


# Openapi ------------------------------------------------------------------------------------------

REFERENCE: Final = "#/components/schemas/{model}"
GIVEN: Final = "Given"
"""End of the name of a schema that is part of a body."""
SCHEME: Final = "token"
EVENTS: Final = "text/event-stream"
EVENT: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string", "description": "The state of the job."},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["data"],
}
"""One server-sent event, with the names of its lines."""
IF_NONE_MATCH: Final = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "ETags of answers that the caller has: 304 where one of them is still right.",
}
DESCRIPTION: Final = """\
Predicts and tunes Domino-style tensor-parallel training. Names in bodies are those of the command
line's options, in snake_case.

Every error is `application/problem+json` (RFC 9457); `errors` points at what is wrong, and `type`
leads to [what it means](static/problems.html). Any route may also answer 400 to what is no HTTP
request.

Every GET answers HEAD, too, has an ETag, and is compressed with gzip for those who take it.
"""


def add_route(app: FastAPI, declared: Declared) -> None:
    """Add ``declared`` to the application."""
    if declared.method == "GET":
        app.add_api_route(
            declared.path, declared.endpoint, methods=["HEAD"], response_model=None,
            dependencies=_dependencies(declared), include_in_schema=False,
        )  # fmt: skip
    app.add_api_route(
        declared.path,
        declared.endpoint,
        methods=[declared.method],
        operation_id=declared.name,
        tags=[declared.tag],
        status_code=declared.status,
        response_model=None,
        response_class=_response_class(declared),
        dependencies=_dependencies(declared),
        responses=_responses(declared),
        openapi_extra=_extra(declared),
        summary=declared.name.replace("_", " ").capitalize(),
    )


def _dependencies(declared: Declared) -> list[params.Depends]:
    """Return the checks before the function is called, in this order."""
    if declared.scope is None:
        return []
    known = query_names(get_dependant(path=declared.path, call=declared.endpoint))
    return [Depends(caller(declared.scope)), Depends(only_query(known))]


def query_names(dependant: Dependant) -> frozenset[str]:
    """Return the query parameters of a function and of all that it depends on."""
    deeper = (query_names(one) for one in dependant.dependencies)
    return frozenset(item.alias for item in dependant.query_params).union(*deeper)


def document(app: FastAPI, declared: Iterable[Declared]) -> dict[str, Any]:
    """Return the OpenAPI document of ``app``, whose routes are ``declared``."""
    made = get_openapi(
        title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes,
        tags=[{"name": tag} for tag in dict.fromkeys(one.tag for one in declared)],
    )  # fmt: skip
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for kind in [one.body.kind for one in declared if one.body]:
        if kind is not None:
            _add_schema(schemas, kind)
    components["schemas"] = dict(sorted(schemas.items()))
    for item in made["paths"].values():
        for operation in item.values():
            _add_examples(operation)
    components["securitySchemes"] = {
        SCHEME: {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of `domino-tune tokens add`. Scopes: read < tune < admin. "
            "Not needed where the service listens on loopback and demands none.",
        }
    }
    return made


def _add_schema(schemas: dict[str, Any], kind: type[BaseModel]) -> None:
    """Add a body's schema. Schemas that answers use, too, get a name of their own here, because
    every field is required in answers and not in bodies."""
    schema = kind.model_json_schema(ref_template=REFERENCE.format(model="{model}" + GIVEN))
    for name, inner in schema.pop("$defs", {}).items():
        schemas[name + GIVEN] = inner
    schemas.setdefault(kind.__name__, schema)


def _add_examples(operation: dict[str, Any]) -> None:
    """Add example values of parameters; ``_content`` adds those of bodies."""
    example = EXAMPLES.get(operation["operationId"], Example())
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in example.parameters:
            parameter["example"] = example.parameters[parameter["name"]]


def _response_class(declared: Declared) -> type[Response]:
    if declared.media_type == JSONResponse.media_type:
        return JSONResponse

    class Answer(Response):
        media_type = declared.media_type

    return Answer


def _responses(declared: Declared) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {}
    for status, kind in {declared.status: declared.returns, **declared.also}.items():
        found[status] = {"description": phrase(status)} | ({"model": kind} if kind else {})
    if declared.media_type == EVENTS:
        found[declared.status]["content"] = {EVENTS: {"schema": EVENT}}
    if has_etag(declared):
        found[declared.status]["headers"] = {"ETag": {"schema": {"type": "string"}}}
        found[304] = {"description": phrase(304)}
    problem = {"schema": {"$ref": REFERENCE.format(model=Problem.__name__)}}
    for status in problem_statuses(declared):
        found[status] = {"description": phrase(status), "content": {MEDIA_TYPE: problem}}
    return found


def problem_statuses(declared: Declared) -> list[int]:
    """Return the statuses of all errors that a route can answer with."""
    found = {400, 403, 405, 422, 500, 503, *declared.problems}
    if declared.scope is not None:
        found |= {401, 429, 507}
    if declared.body is not None:
        found |= {413, 415}
    if "{" in declared.path:
        found.add(404)
    return sorted(found)


def has_etag(declared: Declared) -> bool:
    """Return whether ``api.middleware`` gives the route's answers an ETag."""
    return declared.method == "GET" and declared.media_type not in (EVENTS, "text/plain")


def _extra(declared: Declared) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if has_etag(declared):
        extra["parameters"] = [IF_NONE_MATCH]
    if declared.scope is not None:
        extra["security"] = [{SCHEME: [declared.scope]}]
    if declared.body is not None:
        content = _content(declared.body, EXAMPLES.get(declared.name, Example()))
        extra["requestBody"] = {"required": True, "content": content}
    return extra


def _content(body: BodySpec, example: Example) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object" if body.media_types == JSON_TYPES else "string"}
    if body.kind is not None:
        schema = {"$ref": REFERENCE.format(model=body.kind.__name__)}
    shown: dict[str, Any] = {"schema": schema}
    if example.body is not None:
        shown["example"] = example.body
    if example.file:
        shown["x-file"] = example.file
    return dict.fromkeys(body.media_types, shown)
