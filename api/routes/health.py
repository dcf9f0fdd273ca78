"""Liveness, readiness, metrics, and the description of the API."""

from __future__ import annotations

from typing import Final, Literal

import anyio
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.metrics import MEDIA_TYPE
from api.problems import ProblemError
from api.wire import Routes, in_thread, parts_of
from domino_tune.base.errors import StorageError

routes: Final = Routes("service")
PING_S: Final = 2.0


class Health(BaseModel):
    """The service is well."""

    status: Literal["ok"] = "ok"


@routes.route("GET", "/healthz", scope=None, returns=Health)
async def healthz(request: Request) -> Response:
    """200 as long as requests are answered at all."""
    return JSONResponse(Health().model_dump())


@routes.route("GET", "/readyz", scope=None, returns=Health)
async def readyz(request: Request) -> Response:
    """200 where work can be taken; 503 while the service stops, where the database is away or
    stores nothing, and where nothing can run the jobs of this replica."""
    parts = parts_of(request)
    if parts.draining.is_set():
        raise ProblemError(503, "The service is about to stop.", headers={"Retry-After": "5"})
    try:
        with anyio.fail_after(PING_S):
            await anyio.to_thread.run_sync(
                parts.database.ping, abandon_on_cancel=True, limiter=parts.pings
            )
    except TimeoutError:
        raise ProblemError(
            503, f"The database did not answer in {PING_S:g} s.", headers={"Retry-After": "5"}
        ) from None
    except StorageError as error:
        raise ProblemError(503, str(error), headers={"Retry-After": "5"}) from error
    if parts.runner is not None and parts.runner.lacking:
        raise ProblemError(503, parts.runner.lacking, headers={"Retry-After": "5"})
    return JSONResponse(Health().model_dump())


@routes.route("GET", "/metrics", scope="read", media_type="text/plain")
async def metrics(request: Request) -> Response:
    """Metrics of this replica for Prometheus: requests, jobs, process."""
    data = await in_thread(request.app.state.metrics.exposition)
    return Response(data, media_type=MEDIA_TYPE)


@routes.route("GET", "/openapi.json", scope=None)
async def openapi(request: Request) -> Response:
    """This description of the API."""
    return JSONResponse(request.app.openapi())
