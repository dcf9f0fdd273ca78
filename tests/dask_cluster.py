"""A real Dask cluster on loopback: one scheduler and its workers, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

PATIENCE_S = 60
NO_DASK = "no Dask: pip install 'domino_tune[dask]'"


@dataclass(kw_only=True)
class DaskCluster:
    """``address``: as ``serve --executor`` takes it. Workers have nannies, which start another
    process where one died."""

    folder: Path
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def scheduler_address(self) -> str:
        """``tcp://host:port``."""
        plain: dict[str, Any] = json.loads((self.folder / "scheduler.json").read_text())
        return str(plain["address"])

    @property
    def address(self) -> str:
        """``dask://host:port``."""
        return self.scheduler_address.replace("tcp://", "dask://")

    def worker_pids(self) -> list[int]:
        """The processes that compute: children of the nannies."""
        return [pid for nanny in self.workers for pid in children(nanny.pid, b"spawn_main")]

    def wait_for_workers(self) -> None:
        """Until every nanny's worker has joined."""
        from distributed import Client

        connect: Any = Client
        with connect(self.scheduler_address, set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=PATIENCE_S)

    def kill(self) -> None:
        """kill -9 of everything."""
        for process in (self.scheduler, *self.workers):
            for pid in (*children(process.pid, b""), process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()


def children(pid: int, command: bytes) -> list[int]:
    """Process ids of the children of ``pid`` whose command line has ``command``."""
    try:
        listed = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
        return [one for one in listed if command in Path(f"/proc/{one}/cmdline").read_bytes()]
    except OSError:
        return []


@contextmanager
def dask_cluster(folder: Path, workers: int = 2, port: int = 0) -> Iterator[DaskCluster]:
    """A cluster whose scheduler says at once when a worker died, on a free ``port`` where none is
    given; skips where there is no Dask."""
    pytest.importorskip("distributed", reason=NO_DASK)
    folder.mkdir(exist_ok=True)
    cluster = DaskCluster(
        folder=folder,
        scheduler=_start(
            folder, "scheduler", "--host", "127.0.0.1", "--port", str(port),
            "--scheduler-file", str(folder / "scheduler.json"),
        ),
    )  # fmt: skip
    try:
        _wait_for(folder / "scheduler.json", cluster.scheduler)
        for number in range(workers):
            cluster.workers.append(
                _start(
                    folder, "worker", cluster.scheduler_address, "--nthreads", "1",
                    "--name", f"worker-{number}", "--local-directory", str(folder),
                )
            )  # fmt: skip
        cluster.wait_for_workers()
        yield cluster
    finally:
        for process in (*cluster.workers, cluster.scheduler):
            stop(process)


def _start(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    }
    log = folder / f"{command[0]}.log"
    with open(log, "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *command, "--no-dashboard"],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text().endswith("}")):
        assert process.poll() is None, "the Dask scheduler ended"
        assert time.monotonic() < deadline_s, "the Dask scheduler does not start"
        time.sleep(0.05)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
