"""An HTTP server on loopback that answers by a script, and remembers what it was asked."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

Reply = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Asked:
    """A request that arrived."""

    method: str
    path: str
    key: str | None = None
    body: bytes = field(default=b"", repr=False)


class ScriptedServer(ThreadingHTTPServer):
    """Gives ``replies`` in turn, one to each request."""

    daemon_threads = True

    def __init__(self, *replies: Reply) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies = list(replies)
        self.asked: list[Asked] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve in a thread. Check at the end that every reply was given."""
        thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()
        assert self.replies == []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        script = cast(ScriptedServer, self.server)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Idempotency-Key")
        script.asked.append(Asked(self.command, self.path, key, body))
        script.replies.pop(0)(self)

    do_DELETE = do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


def answer(plain: Any, status: int = 200, **headers: str) -> Reply:
    """Answer with JSON."""
    body = json.dumps(plain).encode()

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(key.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return reply


def events(*jobs: dict[str, Any], broken: bool = False) -> Reply:
    """Answer with a stream of one event a job. ``broken``: it ends in the middle of a chunk."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for job in jobs:
            event = f"event: {job['state']}\ndata: {json.dumps(job)}\n\n".encode()
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        handler.wfile.write(b"ff\r\n: " if broken else b"0\r\n\r\n")
        handler.close_connection = True

    return reply


def lost(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True


def interrupt(handler: BaseHTTPRequestHandler) -> None:
    """Press Ctrl-C while the main thread waits for the answer."""
    main = threading.main_thread().ident
    assert main
    signal.pthread_kill(main, signal.SIGINT)
    handler.rfile.read(1)  # ends when the client closes the connection
    handler.close_connection = True
