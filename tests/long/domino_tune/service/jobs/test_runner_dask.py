"""The runner on a Dask cluster whose workers, or all of whose processes, are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from domino_tune.service.executors.registry import open_executor
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.sql.database import open_database
from tests.real.domino_tune.service.jobs.runners import finished, running, submit, until
from tests.real.domino_tune.service.jobs.test_runner import poison_fails_alone
from tests.support.dask_cluster import dask_cluster
from tests.support.tasks import longer_task, sweep_task


def test_dead_workers_and_a_cluster_that_is_replaced_cost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At last all of the cluster is killed, and another one started at its address."""
    database = open_database(f"sqlite:///{tmp_path}/jobs.db")
    desk = JobDesk(database)
    with dask_cluster(tmp_path / "first") as cluster:
        executor = open_executor(cluster.address, 2)
        poison_fails_alone(database, desk, executor)

        async def play() -> None:
            async with running(database, executor) as runner:
                jobs = {submit(desk, task).id: task for task in (longer_task(3), sweep_task())}
                runner.wake()
                first = next(iter(jobs))
                await until(lambda: desk.get(first, None).progress.done > 3)
                os.kill(cluster.worker_pids()[0], signal.SIGKILL)
                await until(lambda: desk.get(first, None).progress.done > 6)
                cluster.kill()
                await until(lambda: "quantum: " in caplog.text)
                port = int(cluster.address.rpartition(":")[2])
                with dask_cluster(tmp_path / "next", port=port):
                    await finished(desk, jobs)

        asyncio.run(play())
        executor.shutdown(wait=False)
    database.close()
