"""A service of its own for a test: a real process, a real database, real sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from api.parts import Settings
from domino_tune.service.serving import SETTINGS
from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S, descendants, started, wait_until

CHILD: Final = b"executors.child"


def job_processes(*roots: int) -> list[int]:
    """Return the ids of the descendants of ``roots`` that compute jobs. Those that compute
    simulations have no limit of processor time."""
    return [pid for root in roots for pid in descendants(root, CHILD) if _has_job(pid)]


def _has_job(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return len(words) > 2 and words[-2] != b"0"


@dataclass(kw_only=True)
class Service:
    """One that runs; ``log`` holds what it wrote to stderr."""

    port: int
    settings: Settings
    process: subprocess.Popen[str]
    log: Path

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, **given: Any) -> httpx.Client:
        """A client of it."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, **given)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def is_ready(self) -> bool:
        """Whether it answers requests. AssertionError where it ended."""
        assert self.process.poll() is None, f"The service did not start:\n{self.log.read_text()}"
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/healthz", timeout=PATIENCE_S).status_code == 200
        return False


@contextmanager
def serving(folder: Path, **given: Any) -> Iterator[Service]:
    """A service whose database and log are in ``folder``, with these settings."""
    asked: dict[str, Any] = {
        "database_url": f"sqlite:///{folder}/jobs.db", "notice_s": 0, "workers": 1,
        "quick_s": PATIENCE_S, **given,
    }  # fmt: skip
    settings = Settings(**asked)
    log = folder / "log"
    environment = {**os.environ, SETTINGS: settings.to_json(), "OMP_NUM_THREADS": "1"}
    with socket.create_server(("127.0.0.1", 0)) as listener, log.open("ab") as output:
        number = listener.fileno()
        command = [sys.executable, "-m", "tests.support.launch", str(number)]
        with started(
            command, cwd=REPOSITORY, env=environment, pass_fds=[number], stderr=output
        ) as process:
            port: int = listener.getsockname()[1]
            listener.close()  # the service has its own, and who dies does not answer any more
            service = Service(port=port, settings=settings, process=process, log=log)
            wait_until(service.is_ready)
            yield service
