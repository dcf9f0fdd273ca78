"""The service as an ASGI application.

``serve`` starts uvicorn with ``api.app:app`` as a factory, the settings in its environment, and

    http="api.protocol:TimedProtocol", ws="none", lifespan="on", access_log=False,
    server_header=False, proxy_headers=False, h11_max_incomplete_event_size=16384,
    timeout_graceful_shutdown=2
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import anyio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import handlers
from api.metrics import Metrics
from api.observe import UNMATCHED, Guard, Observe
from api.openapi import add_route, document
from api.parts import Parts, open_parts
from api.problems import ProblemError
from api.routes import ALL
from api.settings import Settings, from_environment
from api.wire import Declared
from domino_tune import VERSION
from simulator.errors import DominoTuneError


def app() -> FastAPI:
    """The application with the settings of its environment; logs to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger = logging.getLogger("domino_tune")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return create_app(from_environment())


def create_app(settings: Settings) -> FastAPI:
    """The application. Its parts are opened when it starts to serve, not before."""
    made = FastAPI(
        title="domino_tune",
        version=VERSION,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(settings),
        exception_handlers={
            DominoTuneError: handlers.domino_tune_error,
            ProblemError: handlers.problem_error,
            RequestValidationError: handlers.validation_error,
            HTTPException: handlers.http_exception,
        },
    )
    declared = route_table()
    for one in declared:
        add_route(made, one)
    made.openapi = _openapi(made, declared)  # type: ignore[method-assign]
    made.state.metrics = Metrics()
    made.state.declared = declared
    made.add_middleware(Guard, hosts=settings.hosts)
    made.add_middleware(_Starting, state=made.state)
    made.add_middleware(Observe, counts=made.state.metrics, route_of=_route_names(declared))
    return made


def route_table() -> tuple[Declared, ...]:
    """Every route that is served, with its scope."""
    return tuple(one for routes in ALL for one in routes.declared)


def _openapi(made: FastAPI, declared: tuple[Declared, ...]) -> Callable[[], dict[str, Any]]:
    kept: list[dict[str, Any]] = []

    def openapi() -> dict[str, Any]:
        if not kept:
            kept.append(document(made, declared))
        return kept[0]

    return openapi


def _route_names(declared: tuple[Declared, ...]) -> Callable[[Scope], str]:
    paths = {one.endpoint: one.path for one in declared}
    return lambda scope: paths.get(scope.get("endpoint"), UNMATCHED)  # type: ignore[arg-type]


def _lifespan(settings: Settings) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def lifespan(made: FastAPI) -> AsyncIterator[None]:
        try:
            parts = made.state.parts = await anyio.to_thread.run_sync(open_parts, settings)
        except DominoTuneError as error:
            made.state.failure = str(error)
            raise
        made.state.metrics.watch(parts)
        try:
            if parts.runner is not None:
                await parts.runner.start()
            with _notice(parts):
                yield
        finally:
            parts.draining.set()
            try:
                if parts.runner is not None:
                    await parts.runner.drain(settings.drain_s)
            finally:
                await anyio.to_thread.run_sync(parts.close)

    return lifespan


class _Starting:
    """ASGI middleware: says why the service does not start, without a traceback where it is for
    the user to mend."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def tell(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                message["message"] = getattr(self.state, "failure", message["message"])
            await send(message)

        await self.app(scope, receive, tell if scope["type"] == "lifespan" else send)


@contextmanager
def _notice(parts: Parts) -> Iterator[None]:
    """Tell that we are about to stop when the signal comes, and stop ``notice_s`` later.

    Streams end and /readyz says 503 at once; those who send requests here have until then to see
    it. A second signal stops at once. Signals reach the main thread only: elsewhere (tests) there
    is nothing to tell.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}

    def told(number: int, frame: FrameType | None) -> None:
        then = before[signal.Signals(number)]
        signal.signal(number, then)
        loop.call_soon_threadsafe(parts.draining.set)
        if callable(then):
            loop.call_soon_threadsafe(loop.call_later, parts.settings.notice_s, then, number, None)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, told)
    try:
        yield
    finally:
        for number, then in before.items():
            if signal.getsignal(number) is told:
                signal.signal(number, then)
