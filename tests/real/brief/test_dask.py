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
    state, result = work.resume(), None
    with dask_cluster(tmp_path, workers=1) as cluster:
        executor = open_executor(cluster.address, 1)
        try:
            while result is None:
                quantum = executor.submit(work.advance, task, state, 1e9).result(PATIENCE_S)
                state, result = quantum.state, quantum.result
        finally:
            executor.shutdown(wait=False)
    assert result == undisturbed(task).result
