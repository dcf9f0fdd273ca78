"""Serve: run uvicorn on one socket, with the API as application, named but never imported here."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

import uvicorn

from domino_tune.base.errors import ServiceError, needed_for
from domino_tune.base.memory import give_freed_memory_back, leave_out_what_is_there
from domino_tune.requests.service import ServeRequest, is_loopback
from domino_tune.service.jobs.retention import DAY_S, MIB
from domino_tune.service.sql import database_url, is_there, open_service_database
from domino_tune.service.tokens import TokenDesk
from simulator.errors import InputError

APP: Final = "api.app:app"
SETTINGS: Final = "DOMINO_TUNE_SERVE"
"""Environment variable that hands the API its settings, as JSON."""
LAST_ANSWERS_S: Final = 2
"""Time to finish current answers when the server is told to stop."""
SWITCH_S: Final = 0.0005
"""A thread that computes lets the event loop go on after this time, at each socket call. With 5 ms,
as Python has it, sixty callers at once waited half a second."""
BACKLOG: Final = 2048
MOST_CONNECTIONS: Final = 1000
HEADER_BYTES: Final = 16 << 10
"""Longest request line with its headers."""


class Server(uvicorn.Server):
    """Call ``ready`` once the server has started."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call ``ready``."""
        await super().startup(sockets)
        leave_out_what_is_there()
        self.ready()


def serve(request: ServeRequest, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; call ``ready`` with the address once requests are answered.

    Raise InputError for an address or database that cannot be used, ServiceError where the API does
    not start.
    """
    give_freed_memory_back()
    sys.setswitchinterval(SWITCH_S)
    with _listen(request.host, request.port) as listener:
        alone = is_loopback(listener.getsockname()[0].partition("%")[0])
        # Refusing must not leave a database behind.
        tokens = _tokens(request.database) if alone or is_there(request.database) else 0
        if not tokens and not alone:
            raise InputError(
                f"--host {request.host} can be reached from other machines, and nobody has a token "
                "yet: make one with `python -m domino_tune tokens add NAME`, or leave --host out."
            )
        settings = {
            "database_url": database_url(request.database),
            "executor": request.executor,
            "workers": request.workers or os.cpu_count() or 1,
            "quick_workers": max(2, os.cpu_count() or 1),
            "bind": listener.getsockname()[0],
            "tokens_required": tokens > 0,
            "job_s": 60.0 * request.job_minutes,
            "job_bytes": MIB * request.job_mib,
            "keep_s": DAY_S * request.keep_days,
            "keep_jobs": request.keep_jobs,
            "keep_bytes": MIB * request.keep_mib,
        }
        os.environ[SETTINGS] = json.dumps(settings)
        with needed_for("serve"):
            _run(listener, lambda: ready(f"http://{_address(listener)}"), request.trusted_proxy)


def _tokens(given: str | None) -> int:
    """Return the number of tokens; requests need one as soon as there is one."""
    database = open_service_database(given, what="serve")
    try:
        return len(TokenDesk(database).list())
    finally:
        database.close()


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise InputError for an address or port that cannot be used."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"Cannot listen on --host {host} --port {port}: {reason}; give others."
        ) from None
    # Connections inherit this option. asyncio sets it only on sockets that it opens; without it an
    # answer to a client that delays its ACKs takes 40 ms longer.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _run(listener: socket.socket, ready: Callable[[], None], proxies: Sequence[str]) -> None:
    """Run uvicorn. It stops on signals, and raises them again after it has stopped.

    Behind one of ``proxies`` a caller's address is the last in X-Forwarded-For that is not one.
    """
    config = uvicorn.Config(
        APP, factory=True, http="h11", ws="none", loop="asyncio", lifespan="on",
        log_level="warning", access_log=False, server_header=False, proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        h11_max_incomplete_event_size=HEADER_BYTES, timeout_graceful_shutdown=LAST_ANSWERS_S,
        limit_concurrency=MOST_CONNECTIONS,
    )  # fmt: skip
    server = Server(config, ready)
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        if not server.started:
            raise
    except SystemExit:
        raise ServiceError("The service did not start; what is above says why.") from None
    finally:
        signal.signal(signal.SIGTERM, before)
