"""A service of its own for a test: a real process, a real database, real sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from api.settings import VARIABLE, Settings
from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S

STOP_S = 30.0


@dataclass(kw_only=True)
class Service:
    """One that runs; ``log`` holds what it wrote to stderr."""

    port: int
    settings: Settings
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, **given: Any) -> httpx.Client:
        """A client of it."""
        return httpx.Client(base_url=self.url, timeout=60, **given)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_S)


@contextmanager
def serving(folder: Path, **given: Any) -> Iterator[Service]:
    """A service whose database and log are in ``folder``, with these settings."""
    asked: dict[str, Any] = {
        "database_url": f"sqlite:///{folder}/jobs.db", "notice_s": 0, "workers": 1, **given,
    }  # fmt: skip
    settings = Settings(**asked)
    log = folder / "log"
    environment = {**os.environ, VARIABLE: settings.to_json(), "OMP_NUM_THREADS": "1"}
    with socket.create_server(("127.0.0.1", 0)) as listener, log.open("ab") as output:
        number = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.launch", str(number)],
            cwd=REPOSITORY, env=environment, pass_fds=[number], stderr=output,
        )  # fmt: skip
        port: int = listener.getsockname()[1]
    service = Service(port=port, settings=settings, process=process, log=log)
    try:
        _wait(service)
        yield service
    finally:
        service.stop(signal.SIGKILL)


def _wait(service: Service) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            if httpx.get(f"{service.url}/readyz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        if service.process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"The service did not start:\n{service.log.read_text()}")
        time.sleep(0.05)
