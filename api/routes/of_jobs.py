"""The routes that every kind of job has: make, list, get, cancel, finish and delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from api.generate import Wire
from api.job_schemas import JobPage
from api.jobs import (
    Cursor,
    Limit,
    Prefer,
    Wanted,
    cancel_job,
    delete_job,
    find_job,
    finish_job,
    job_response,
    page_of_jobs,
    submit_job,
)
from api.wire import IdempotencyKey, JobId, Me, Routes, body_of
from domino_tune.service.jobs.job import JobKind
from domino_tune.service.tokens import Scope


class Nouns(NamedTuple):
    """One job and several, as operations are named in the document: ``get_tune``,
    ``list_tunes``."""

    one: str
    many: str


class Texts(NamedTuple):
    """What each operation does, for the document. ``finish`` is empty where a kind keeps nothing
    of a job that is stopped."""

    create: str
    list: str
    get: str
    cancel: str
    delete: str
    finish: str = ""


def job_routes(
    kind: JobKind, tag: str, body: type[Wire], returns: type[BaseModel], nouns: Nouns, texts: Texts,
    *, makes: Scope = "tune", problems: Sequence[int] = (),
) -> Routes:  # fmt: skip
    """Return the routes of a kind of jobs, below /v1/``tag``; ``body`` asks for one, ``returns`` is
    how it is answered. ``makes``: the scope that may make one, which can fail with ``problems``,
    too."""
    routes = Routes(tag)
    path, one = f"/v1/{tag}", f"/v1/{tag}/{{job_id}}"

    @routes.route(
        "POST", path, scope=makes, status=202, returns=returns, also={200: returns},
        problems=problems,
    )  # fmt: skip
    @_named(f"create_{nouns.one}", texts.create)
    async def create(
        request: Request,
        caller: Me,
        idempotency_key: IdempotencyKey = None,
        prefer: Prefer = None,
        body: Any = body_of(body),
    ) -> Response:
        return await submit_job(request, caller, kind, body, idempotency_key, prefer)

    @routes.route("GET", path, scope="read", returns=JobPage)
    @_named(f"list_{nouns.many}", texts.list)
    async def listed(
        request: Request, caller: Me, wanted: Wanted, cursor: Cursor = None, limit: Limit = 50
    ) -> Response:
        return await page_of_jobs(request, caller, kind, wanted, cursor, limit)

    @routes.route("GET", one, scope="read", returns=returns)
    @_named(f"get_{nouns.one}", texts.get)
    async def get(request: Request, caller: Me, job_id: JobId) -> Response:
        return await job_response(request, await find_job(request, caller, kind, job_id))

    @routes.route("POST", f"{one}/cancel", scope="tune", returns=returns)
    @_named(f"cancel_{nouns.one}", texts.cancel)
    async def cancel(request: Request, caller: Me, job_id: JobId) -> Response:
        return await cancel_job(request, caller, kind, job_id)

    if texts.finish:

        @routes.route("POST", f"{one}/finish", scope="tune", returns=returns)
        @_named(f"finish_{nouns.one}", texts.finish)
        async def finish(request: Request, caller: Me, job_id: JobId) -> Response:
            return await finish_job(request, caller, kind, job_id)

    @routes.route("DELETE", one, scope="tune", status=204, problems=(409,))
    @_named(f"delete_{nouns.one}", texts.delete)
    async def delete(request: Request, caller: Me, job_id: JobId) -> Response:
        return await delete_job(request, caller, kind, job_id)

    return routes


Endpoint = Callable[..., Awaitable[Response]]


def _named(name: str, text: str) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that gives a route's function its name and text in the document."""

    def name_it(endpoint: Endpoint) -> Endpoint:
        endpoint.__name__ = endpoint.__qualname__ = name
        endpoint.__doc__ = text
        return endpoint

    return name_it
