"""deploy/proxy/nginx.conf in a real nginx, in front of a server that records the caller's
address.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.real.deployment import NGINX
from tests.support.processes import PATIENCE_S, started

BURST = 5


@dataclass(kw_only=True)
class Proxy:
    """``told``: the callers' addresses that the server received."""

    port: int
    told: list[str | None] = field(default_factory=list)

    def caller(self, address: str) -> httpx.Client:
        """Return a client that calls the proxy from an address."""
        transport = httpx.HTTPTransport(local_address=address)
        url = f"http://127.0.0.1:{self.port}"
        return httpx.Client(base_url=url, transport=transport, timeout=PATIENCE_S)


@contextmanager
def answering(told: list[str | None]) -> Iterator[str]:
    """Answer every request with 200; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.append(self.headers.get("X-Forwarded-For"))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextmanager
def proxied(folder: Path, **limits: str) -> Iterator[Proxy]:
    """Run nginx; ``limits`` replace those in the file."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no nginx: apt-get install nginx-light")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy, number = Proxy(port=int(listener.getsockname()[1])), listener.fileno()
        with answering(proxy.told) as url:
            changes = {
                r"listen 8080;": f"listen 127.0.0.1:{proxy.port};",
                r"http://api:8000": url,
                r"/tmp/": f"{folder}/",
                r"/dev/std(out|err)": str(folder / "nginx.log"),
                **{rf"\b{name}=\w+(/s)?": f"{name}={limit}" for name, limit in limits.items()},
            }
            text = NGINX
            for old, new in changes.items():
                text, many = re.subn(old, new, text)
                assert many, old
            (folder / "nginx.conf").write_text(text)
            user = "user root;" if os.geteuid() == 0 else ""  # who may read this folder
            command = [program, "-c", str(folder / "nginx.conf"), "-g", f"daemon off; {user}"]
            inherited = {**os.environ, "NGINX": f"{number};"}
            with started(command, env=inherited, pass_fds=[number]):
                yield proxy


def test_the_proxy_limits_each_caller_and_speaks_of_problems(tmp_path: Path) -> None:
    with (
        proxied(tmp_path, rate="1r/m", burst=str(BURST)) as proxy,
        proxy.caller("127.0.0.3") as one,
        proxy.caller("127.0.0.4") as other,
    ):
        answers = [one.get("/healthz") for _ in range(4 * BURST)]
        assert set(Counter(answer.status_code for answer in answers)) == {200, 429}
        refused = answers[-1]
        assert refused.json() == {
            "type": "about:blank",
            "title": "Too Many Requests",
            "status": 429,
        }
        assert refused.headers["retry-after"] == "1"
        assert other.get("/healthz").status_code == 200
        large = other.post("/v1/simulations", content=b" " * (3 << 20))
        hidden = other.get("/metrics")
        for answer, status in ((large, 413), (hidden, 404)):
            assert (answer.status_code, answer.json()["status"]) == (status, status)
            assert answer.headers["content-type"] == "application/problem+json"


def test_the_service_is_told_who_calls_and_not_who_that_says_to_be(tmp_path: Path) -> None:
    """The service counts by address who guesses tokens."""
    with proxied(tmp_path) as proxy, proxy.caller("127.0.0.3") as one:
        for headers in ({}, {"X-Forwarded-For": "192.0.2.1"}):
            assert one.get("/v1/models", headers=headers).status_code == 200
    assert proxy.told == ["127.0.0.3"] * 2
