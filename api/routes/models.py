"""Models: presets, and Hugging Face configs that users named."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from api.answers import Cursor, Limit, json_response, sliced
from api.conditions import idempotency
from api.generate import LONGEST_SLUG
from api.schemas import Model, ModelPage
from api.wire import SLUG, IdempotencyKey, Me, Routes, Slug, in_thread, object_body, parts_of
from domino_tune.service.encoding import json_bytes
from domino_tune.service.library import StoredModel

routes: Final = Routes("models")
Name = Annotated[
    str, Query(pattern=SLUG, max_length=LONGEST_SLUG, description="The model's name from now on.")
]


@routes.route("GET", "/v1/models", scope="read", returns=ModelPage)
async def list_models(
    request: Request, caller: Me, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """Presets, then the models that users added."""
    models = await in_thread(parts_of(request).library.list_models)
    return sliced(models, lambda one: one.name, _plain, cursor, limit)


@routes.route(
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
    200 if the name existed: from now on it means this model.
    """
    model, created = await in_thread(
        parts_of(request).library.put_model, name, body,
        idempotency=idempotency(request, caller, idempotency_key), owner=caller.owner,
    )  # fmt: skip
    path = f"{request.scope.get('root_path', '')}/v1/models/{name}"
    return json_response(
        json_bytes(_plain(model)), status=201 if created else 200, headers={"Location": path}
    )


@routes.route("DELETE", "/v1/models/{name}", scope="admin", status=204, problems=(409,))
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
