"""A real service to measure: ``python -m domino_tune serve`` in a folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import httpx

from domino_tune.base.errors import RunError

START_S: Final = 60.0
STOP_S: Final = 20.0
REPOSITORY: Final = Path(__file__).resolve().parents[2]
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(kw_only=True)
class Service:
    """A server process, its address, and the file that takes what it prints."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @classmethod
    def start(cls, folder: Path, *options: str) -> Service:
        """Start `serve` with ``options`` on a free port; ready when this returns.

        Data and log are in ``folder``. Raises RunError, with what it printed, where it ends or is
        not ready within a minute.
        """
        port = free_port()
        log = folder / f"serve-{port}.log"
        command = [sys.executable, "-m", "domino_tune", "serve", "--port", str(port), *options]
        environment = {**os.environ, "DOMINO_TUNE_HOME": str(folder), "PYTHONPATH": search_path()}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        service = cls(process=process, url=f"http://127.0.0.1:{port}", log=log)
        try:
            service.wait_ready()
        except BaseException:
            service.kill()
            raise
        return service

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def wait_ready(self) -> None:
        """Return when /readyz says 200; RunError as `start` says."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz", timeout=5.0).status_code == 200:
                    return
            time.sleep(0.1)
        raise RunError(f"serve is not ready; it printed: {self.printed()[-2000:] or 'nothing'}")

    def printed(self) -> str:
        """What the server wrote to stdout and stderr so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> int:
        """Send SIGTERM and return the exit code; killed, with what it started, after 20 s."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode

    def kill(self) -> None:
        """SIGKILL to the server and its workers, which are its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def rss_bytes(self) -> int:
        """Resident memory of the server and all its workers, in bytes (Linux)."""
        return sum(resident_bytes(pid) for pid in family(self.process.pid))


def search_path() -> str:
    """PYTHONPATH that finds this very domino_tune from another folder."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(REPOSITORY), *([inherited] if inherited else [])])


def family(pid: int) -> Sequence[int]:
    """``pid`` and its descendants, as /proc tells them now."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:  # it has ended
                continue
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, in bytes; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0
