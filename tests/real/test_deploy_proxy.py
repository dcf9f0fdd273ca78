"""deploy/proxy/nginx.conf in a real nginx, before a real service."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.real.deployment import NGINX
from tests.real.domino_tune.serving import command, served
from tests.support.processes import wait_until

PROXY = "127.0.0.2"
"""The address from which the proxy calls the service."""
BURST = 5
MOST_GUESSES = 2000


@contextmanager
def proxied(folder: Path, **limits: str) -> Iterator[int]:
    """Run nginx before a service that wants tokens; yield its port. ``limits`` take the place of
    those in the file."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no nginx: apt-get install nginx-light")
    assert command(folder, "tokens", "add", "ann").returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with served(folder, "--trusted-proxy", PROXY) as service:
        changes = {
            r"listen 8080;": f"listen 127.0.0.1:{port}; proxy_bind {PROXY};",
            r"http://api:8000": service.url,
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
        words = [program, "-c", str(folder / "nginx.conf"), "-g", f"daemon off; {user}"]
        process = subprocess.Popen(words)
        try:
            wait_until(lambda: _listens(port))
            yield port
        finally:
            process.terminate()
            process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def caller(port: int, address: str) -> httpx.Client:
    """A client that calls the proxy from an address."""
    transport = httpx.HTTPTransport(local_address=address)
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=transport, timeout=60)


def guess(client: httpx.Client) -> httpx.Response:
    """The answer to a token that nobody has, from a caller who says to be another."""
    headers = {
        "Authorization": f"Bearer dt_{secrets.token_urlsafe(32)}",
        "X-Forwarded-For": f"192.0.2.{secrets.randbelow(256)}",
    }
    return client.get("/v1/models", headers=headers)


def test_the_proxy_limits_each_caller_and_speaks_of_problems(tmp_path: Path) -> None:
    with (
        proxied(tmp_path, rate="1r/s", burst=str(BURST)) as port,
        caller(port, "127.0.0.3") as one,
        caller(port, "127.0.0.4") as other,
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


def test_the_service_knows_callers_by_what_the_proxy_says(tmp_path: Path) -> None:
    with (
        proxied(tmp_path, rate="9000r/s", burst="9000") as port,
        caller(port, "127.0.0.3") as one,
        caller(port, "127.0.0.4") as other,
        ThreadPoolExecutor(8) as threads,
    ):
        statuses = threads.map(lambda _: guess(one).status_code, range(MOST_GUESSES))
        assert 429 in statuses, "who says to be many is one"
        assert guess(other).status_code == 401
