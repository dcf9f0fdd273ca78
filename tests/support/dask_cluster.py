"""A real Dask cluster on loopback: one scheduler and its workers, each in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S, children, started, wait_until

NO_DASK = "no Dask: pip install 'domino_tune[dask]'"


@dataclass(kw_only=True)
class DaskCluster:
    """A scheduler and workers. Each worker has a nanny, which starts a new process after a kill."""

    folder: Path
    scheduler: subprocess.Popen[str]
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def scheduler_address(self) -> str:
        """Return ``tcp://host:port``."""
        plain: dict[str, Any] = json.loads((self.folder / "scheduler.json").read_text())
        return str(plain["address"])

    @property
    def address(self) -> str:
        """Return ``dask://host:port``, as ``serve --executor`` takes it."""
        return self.scheduler_address.replace("tcp://", "dask://")

    def worker_pids(self) -> list[int]:
        """Return the ids of the processes that compute: the children of the nannies."""
        return [pid for nanny in self.workers for pid in children(nanny.pid, b"spawn_main")]

    def wait_for_workers(self, count: int) -> None:
        """Wait until so many workers have joined."""
        from distributed import Client

        connect: Any = Client
        with connect(self.scheduler_address, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=PATIENCE_S)

    def kill(self) -> None:
        """Kill all processes with SIGKILL."""
        for process in (self.scheduler, *self.workers):
            for pid in (*children(process.pid), process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()


@contextmanager
def dask_cluster(folder: Path, workers: int = 2, port: int = 0) -> Iterator[DaskCluster]:
    """Run a cluster that reports a dead worker at once. Skip where Dask is not installed."""
    pytest.importorskip("distributed", reason=NO_DASK)
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        place = ("--no-dashboard", "--host", "127.0.0.1", "--port", str(port))
        scheduler = stack.enter_context(scheduling(folder, "scheduler", *place))
        cluster = DaskCluster(folder=folder, scheduler=scheduler)
        for number in range(workers):
            name = f"worker-{number}"
            cluster.workers.append(stack.enter_context(working(cluster, name)))
        if workers:
            cluster.wait_for_workers(workers)
        yield cluster


@contextmanager
def scheduling(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``dask WORDS``, a scheduler, which writes its address to ``scheduler.json``."""
    file = folder / "scheduler.json"
    with dask(folder, *words, "--scheduler-file", str(file)) as process:
        wait_until(lambda: _is_started(file, process))
        yield process


@contextmanager
def working(
    cluster: DaskCluster, name: str, first: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a worker that Dask calls ``name``; it looks for packages in ``first`` before others."""
    words = (
        "worker", cluster.scheduler_address, "--no-dashboard", "--nthreads", "1",
        "--name", name, "--local-directory", str(cluster.folder),
    )  # fmt: skip
    with dask(cluster.folder, *words, first=first) as process:
        yield process


OTHER = {
    "domino_tune": "from domino_tune.base import origin; origin.VERSION = '9.9'",
    "distributed": "from importlib import metadata as m; there = m.version; m.version = "
    "lambda name: '9.9' if name == 'distributed' else there(name)",
}
"""What makes a package another version, 9.9, in a Python that starts."""


def other_version(folder: Path, package: str) -> Path:
    """Return a folder that makes a worker's ``package`` another version."""
    (place := folder / package).mkdir()
    (place / "sitecustomize.py").write_text(OTHER[package])
    return place


@contextmanager
def dask(folder: Path, *words: str, first: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run ``dask WORDS`` in a process group of its own until the context ends."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, [first, REPOSITORY]))),
        "OMP_NUM_THREADS": "1",
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    }
    command = [sys.executable, "-m", "dask", *words]
    with (
        open(folder / f"{words[0]}.log", "ab") as out,
        started(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        ) as process,
    ):
        yield process


def _is_started(path: Path, process: subprocess.Popen[str]) -> bool:
    assert process.poll() is None, (path.parent / "scheduler.log").read_text()
    return path.exists() and path.read_text().endswith("}")
