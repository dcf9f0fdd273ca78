"""Service: a real ``python -m domino_tune serve`` in its own folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import httpx
import psutil

from domino_tune.base.errors import RunError

START_S: Final = 900.0
"""Limit that only guards against hanging: loaded machines take long."""
STOP_S: Final = 20.0
REPOSITORY: Final = Path(__file__).resolve().parents[2]
SAID: Final = re.compile(r"domino_tune serves (http://\S+) until Ctrl-C")


@dataclass(kw_only=True)
class Service:
    """A server process, its URL, and the file of its output."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @classmethod
    def start(cls, folder: Path, *options: str) -> Service:
        """Start `serve` with ``options`` on a port that it finds, data and log in ``folder``, and
        wait until it is ready. Raise RunError with its output if it never is."""
        log = folder / f"serve-{len(list(folder.glob('serve-*.log')))}.log"
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "domino_tune", "serve", "--port", "0", *options],
                env={**os.environ, "DOMINO_TUNE_HOME": str(folder), "PYTHONPATH": path},
                cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        service = cls(process=process, url="", log=log)
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
        """Wait until it says where it is, and /readyz returns 200. Raise RunError as `start`."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            if found := SAID.search(self.printed()):
                self.url = found[1]
            with suppress(httpx.TransportError, httpx.UnsupportedProtocol):
                if httpx.get(f"{self.url}/readyz", timeout=5.0).status_code == 200:
                    return
            time.sleep(0.1)
        raise RunError(f"serve is not ready; it printed: {self.printed()[-2000:] or 'nothing'}")

    def printed(self) -> str:
        """Return what the server has written to stdout and stderr."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> int:
        """Send SIGTERM and return the exit code. After 20 s, kill it and its workers."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode

    def kill(self) -> None:
        """Send SIGKILL to the server and its workers, which are its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def rss_bytes(self) -> int:
        """Return the resident memory of the server and all its workers, in bytes."""
        server, total = psutil.Process(self.process.pid), 0
        for each in [server, *server.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss
        return total
