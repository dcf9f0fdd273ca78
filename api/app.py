"""The service as an ASGI application.

``serve`` starts uvicorn with the factory ``api.app:app`` and the settings in the environment
(``domino_tune.service.serving``).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from types import FrameType
from typing import Any

import anyio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import middleware
from api.middleware import UNMATCHED, Guard, Observe, Representation
from api.openapi import add_route, document
from api.parts import Parts, Settings, from_environment, open_parts
from api.problems import ProblemError
from api.routes import ALL
from api.routes.health import Metrics
from api.wire import Declared
from domino_tune.base.origin import VERSION
from simulator.errors import DominoTuneError


def app() -> FastAPI:
    """Return the application with the settings of the environment; log to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger = logging.getLogger("domino_tune")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return create_app(from_environment())


def create_app(settings: Settings) -> FastAPI:
    """Return the application, which opens its parts when it starts to serve."""
    made = FastAPI(
        title="domino_tune",
        version=VERSION,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(settings),
        exception_handlers={
            DominoTuneError: middleware.domino_tune_error,
            ProblemError: middleware.problem_error,
            RequestValidationError: middleware.validation_error,
            HTTPException: middleware.http_exception,
        },
    )
    declared = route_table()
    for one in declared:
        add_route(made, one)
    made.openapi = cache(lambda: document(made, declared))  # type: ignore[method-assign]
    made.state.metrics = Metrics()
    made.state.declared = declared
    made.add_middleware(Representation)
    made.add_middleware(Guard, hosts=settings.hosts)
    made.add_middleware(_Starting, state=made.state)
    made.add_middleware(Observe, counts=made.state.metrics, route_of=_route_names(declared))
    return made


def route_table() -> tuple[Declared, ...]:
    """Return every served route with its scope."""
    return tuple(one for routes in ALL for one in routes.declared)


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
            with _notice(parts):
                yield
        finally:
            parts.draining.set()
            await anyio.to_thread.run_sync(parts.close)

    return lifespan


class _Starting:
    """ASGI middleware: say why the service does not start, without a traceback where the user can
    correct it."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def explain(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                message["message"] = getattr(self.state, "failure", message["message"])
            await send(message)

        await self.app(scope, receive, explain if scope["type"] == "lifespan" else send)


@contextmanager
def _notice(parts: Parts) -> Iterator[None]:
    """On the first signal set ``draining``, and stop ``notice_s`` later.

    Streams end and /readyz answers 503 at once, so that load balancers can notice. A second signal
    stops at once. Signals reach only the main thread: elsewhere (tests) do nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        stop = before[signal.Signals(number)]
        signal.signal(number, stop)
        loop.call_soon_threadsafe(parts.draining.set)
        if callable(stop):
            loop.call_soon_threadsafe(loop.call_later, parts.settings.notice_s, stop, number, None)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, stop in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, stop)
