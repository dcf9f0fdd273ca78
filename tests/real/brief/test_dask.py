"""A job on a real Dask cluster of one worker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from domino_tune.service.executors import Limits
from domino_tune.service.executors.registry import open_executor
from domino_tune.service.work import JobStep
from tests.support.dask_cluster import dask_cluster
from tests.support.tasks import TASKS, undisturbed


def test_a_sweep_gives_the_same_bytes_there(tmp_path: Path) -> None:
    steps: list[JobStep] = []
    with (
        dask_cluster(tmp_path, workers=1) as cluster,
        closing(open_executor(cluster.address, 1)) as executor,
    ):
        found = executor.run(TASKS["sweep"], Limits(), steps.append, lambda: "go on")
        assert (executor.workers, executor.lacking) == (1, "")
    assert found.result == undisturbed(TASKS["sweep"]).result
    assert [index for step in steps for index, _ in step.points] == [0, 1, 2, 3]
