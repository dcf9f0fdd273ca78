"""Metrics for Prometheus."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.metrics import MEDIA_TYPE
from api.wire import Routes, in_thread

routes: Final = Routes("service")


@routes.route("GET", "/metrics", scope="read", media_type="text/plain")
async def metrics(request: Request) -> Response:
    """Requests, jobs and the process, in Prometheus' text format."""
    text = await in_thread(request.app.state.metrics.exposition)
    return Response(text, media_type=MEDIA_TYPE)
