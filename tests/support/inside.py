"""The service within this process: no socket, no process, and a clock that the test controls.

Requests reach it through uvicorn's protocol, with the configuration that ``serve`` uses: byte by
byte as on a connection (``exchange``), or whole (``client``).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import httpx
import uvicorn
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI
from uvicorn.server import ServerState

from api import parts, protocol, uploads
from api.app import create_app
from api.settings import Settings
from domino_tune.service import serving
from tests.support.door.exchange import Answer, Part, answer_in
from tests.support.processes import PATIENCE_S

HERE: Final = "127.0.0.1"
STEP_S: Final = 0.5
ROUNDS: Final = 20
"""Rounds of the event loop after each step of time, in which due events happen."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


class Wire(asyncio.Transport):
    """A connection that records what is sent over it."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1), "sockname": (HERE, 80)})
        self.sent = bytearray()
        self.closed = False
        self.changed = asyncio.Event()
        self.reading = True

    def write(self, data: Any) -> None:
        self.sent += data
        self.changed.set()

    def close(self) -> None:
        self.closed = True
        self.changed.set()

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.changed.set()


@dataclass(kw_only=True)
class Inside(httpx.BaseTransport):
    """A service that runs in a thread's event loop."""

    settings: Settings
    config: uvicorn.Config
    portal: BlockingPortal

    def client(self, **given: Any) -> httpx.Client:
        """Return a client of it."""
        return httpx.Client(base_url="http://127.0.0.1", transport=self, **given)

    def exchange(self, sent: Sequence[Part], address: str = HERE, *, late: bool = False) -> Answer:
        """Send parts over a connection of their own. Seconds among the parts pass at once, and so
        does the time until a ``late`` answer.
        """
        return self.portal.call(self._exchange, sent, address, late)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a client."""
        body = request.read()
        return self.portal.call(self._whole, request, body)

    async def _whole(self, request: httpx.Request, body: bytes) -> httpx.Response:
        asked = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        transport = httpx.ASGITransport(self.config.loaded_app, client=(HERE, 1))
        answer = await transport.handle_async_request(asked)
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        told = [part async for part in answer.stream]
        return httpx.Response(answer.status_code, headers=answer.headers, content=b"".join(told))

    async def _exchange(self, sent: Sequence[Part], address: str, late: bool) -> Answer:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        wire = Wire(address)
        made = protocol.TimedProtocol(self.config, ServerState(), {}, loop)
        made.connection_made(wire)
        try:
            for part in sent:
                if isinstance(part, float):
                    await _pass(loop, part)
                else:
                    await _send(made, wire, part)
            while (answer := answer_in(bytes(wire.sent), ended=wire.closed)) is None:
                await (_pass(loop, STEP_S) if late else _change(wire))
            return answer
        finally:
            made.connection_lost(None)


async def _send(made: protocol.TimedProtocol, wire: Wire, data: bytes) -> None:
    """Let a connection receive ``data`` in pieces, each after it has taken the last one."""
    for start in range(0, len(data), protocol.READ_BYTES):
        while not (wire.reading or wire.closed):
            await _change(wire)
        if wire.closed:
            return
        made.data_received(data[start : start + protocol.READ_BYTES])
        await asyncio.sleep(0)


async def _change(wire: Wire) -> None:
    wire.changed.clear()
    await wire.changed.wait()


async def _pass(loop: Loop, seconds: float) -> None:
    loop.ahead_s += seconds
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


def config_of(app: FastAPI, proxies: Sequence[str] = ()) -> uvicorn.Config:
    """Return the configuration that ``serve`` gives uvicorn for an existing application."""
    found: list[uvicorn.Config] = []

    def keep(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        found.append(server.config)

    with patch.object(serving.Server, "run", keep), socket.socket() as unused:
        serving._run(unused, lambda: None, proxies)
    config = found[0]
    config.app, config.factory = app, False
    config.load()
    return config


def _threads(slots: int, niceness: int = 0) -> Executor:
    return ThreadPoolExecutor(slots)


@contextmanager
def inside(folder: Path, proxies: Sequence[str] = (), **given: Any) -> Iterator[Inside]:
    """Run a service with its database in ``folder`` that runs no jobs; threads replace its worker
    processes.
    """
    asked: dict[str, Any] = {
        "database_url": f"sqlite:///{folder}/jobs.db", "workers": 0, "quick_s": PATIENCE_S, **given,
    }  # fmt: skip
    settings = Settings(**asked)
    app = create_app(settings)
    with (
        patch.object(parts, "SlotExecutor", _threads),
        patch.object(uploads, "SlotExecutor", _threads),
        patch.object(protocol, "_receive_s", lambda: settings.receive_s),
        start_blocking_portal(backend_options={"loop_factory": Loop}) as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
    ):
        yield Inside(settings=settings, config=config_of(app, proxies), portal=portal)
