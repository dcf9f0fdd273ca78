"""A job on a real Dask cluster of one worker."""

from __future__ import annotations

from pathlib import Path

from domino_tune.service.executors.registry import open_executor
from domino_tune.service.tasks import work
from tests.support.dask_cluster import dask_cluster
from tests.support.processes import PATIENCE_S
from tests.support.tasks import sweep_task, undisturbed


def test_a_sweep_gives_the_same_bytes_there(tmp_path: Path) -> None:
    task = sweep_task()
    with dask_cluster(tmp_path, workers=1) as cluster:
        executor = open_executor(cluster.address, 1)
        try:
            first = executor.submit(work.advance, task, work.resume(), 0.0).result(PATIENCE_S)
            last = executor.submit(work.advance, task, first.state, 1e9).result(PATIENCE_S)
        finally:
            executor.shutdown(wait=False)
    assert first.result is None
    assert last.result == undisturbed(task).result
