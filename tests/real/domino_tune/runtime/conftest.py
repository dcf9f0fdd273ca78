"""The ranks, started once a test session, whatever the number of test workers."""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY
from tests.real.domino_tune.runtime.cases import all_jobs, few_jobs
from tests.real.domino_tune.runtime.jobs import Job, RankResult
from tests.real.domino_tune.runtime.ranks import WORLD
from tests.support.processes import PATIENCE_S

Results = dict[str, list[RankResult]]
"""Job name → what its ranks saw, in rank order."""
Jobs = dict[str, list[Job]]
"""Kind → jobs."""


@pytest.fixture(scope="session")
def jobs(pytestconfig: pytest.Config) -> Jobs:
    """The jobs that are played: all of them with --all."""
    return all_jobs() if pytestconfig.getoption("--all") else few_jobs()


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> Results:
    """The jobs, played on real gloo ranks."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "ranks"
    with open(shared / "ranks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            _run_ranks(folder, [job for kind in jobs.values() for job in kind])
    assert (folder / f"rank{WORLD - 1}").exists(), "the ranks failed; see the other failures"
    results: Results = {}
    for rank in range(WORLD):
        for name, result in torch.load(folder / f"rank{rank}", weights_only=False).items():
            results.setdefault(name, []).append(result)
    return results


def _run_ranks(folder: Path, jobs: list[Job]) -> None:
    (folder / "jobs").write_bytes(pickle.dumps(jobs))
    ranks = [_start(rank, folder) for rank in range(WORLD)]
    deadline = time.monotonic() + PATIENCE_S
    try:
        while any(rank.poll() is None for rank in ranks):
            dead = [i for i, rank in enumerate(ranks) if rank.poll() not in (None, 0)]
            if dead or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for i, rank in enumerate(ranks):
        if rank.returncode:
            pytest.fail(f"rank {i}: {(folder / f'stderr{i}').read_text()}")


def _start(rank: int, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.real.domino_tune.runtime.ranks", str(rank), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(folder / f"stderr{rank}", "wb") as stderr:
        return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=stderr)
