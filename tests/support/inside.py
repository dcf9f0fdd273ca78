"""The service within this process: no socket and no process. Threads replace its child processes,
and it runs no jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

from api import parts
from api.app import create_app
from api.parts import Settings
from tests.support.processes import PATIENCE_S

HERE: Final = "127.0.0.1"


class Threads:
    """A pool of threads in place of child processes."""

    def __init__(self, slots: int, memory_bytes: int = 0) -> None:
        self.slots = slots
        self._threads = ThreadPoolExecutor(slots)

    def warm(self) -> None:
        """Nothing to do."""

    def submit(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Future[Any]:
        """Call it in a thread, however long it takes."""
        return self._threads.submit(function, *arguments)

    def close(self) -> None:
        """Wait for the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)


@dataclass(kw_only=True)
class Inside(httpx.BaseTransport):
    """A service that runs in a thread's event loop."""

    settings: Settings
    app: FastAPI
    portal: BlockingPortal
    address: str = HERE

    def client(self, **given: Any) -> httpx.Client:
        """Return a client of it."""
        return httpx.Client(base_url="http://127.0.0.1", transport=self, **given)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a client."""
        body = request.read()
        return self.portal.call(self._whole, request, body)

    async def _whole(self, request: httpx.Request, body: bytes) -> httpx.Response:
        asked = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        transport = httpx.ASGITransport(self.app, client=(self.address, 1))
        answer = await transport.handle_async_request(asked)
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        told = [part async for part in answer.stream]
        return httpx.Response(answer.status_code, headers=answer.headers, content=b"".join(told))


@contextmanager
def inside(folder: Path, **given: Any) -> Iterator[Inside]:
    """Run a service with its database in ``folder``."""
    asked: dict[str, Any] = {
        "database_url": f"sqlite:///{folder}/jobs.db", "workers": 0, "quick_s": PATIENCE_S, **given,
    }  # fmt: skip
    settings = Settings(**asked)
    app = create_app(settings)
    with (
        patch.object(parts, "ProcessPool", Threads),
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
    ):
        yield Inside(settings=settings, app=app, portal=portal)
