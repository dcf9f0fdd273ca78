"""Jobs that end before their search does, and jobs that are no longer kept."""

from __future__ import annotations

import asyncio

import pytest

from domino_tune.service.executors.slots import SlotExecutor
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.jobs.listing import JobFilter
from domino_tune.service.jobs.retention import Retention
from domino_tune.service.jobs.runner import Runner
from domino_tune.service.quota import Keep
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.tables import jobs as jobs_table
from tests.real.domino_tune.service.jobs.runners import (
    Watched,
    ended,
    finished,
    running,
    submit,
    until,
)
from tests.support.tasks import (
    layout_task,
    longer_task,
    sweep_task,
    tune_task,
)


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Desk and leases, which the runner uses, are tested on both kinds of database."""
    return sqlite_url


def test_stop_and_keep(database: Database, desk: JobDesk, slots: SlotExecutor) -> None:
    async def play() -> None:
        async with running(database, slots) as runner:
            job = submit(desk, longer_task(3))
            runner.wake()
            await until(lambda: desk.get(job.id, None).progress.done > 2)
            best = desk.finish(job.id, "ann").best
            found, result = await ended(desk, job)
            assert found.stopped_by == result["stopped_by"] == "user"
            assert best is not None
            assert result["best"]["iteration_ms"] <= best["iteration_ms"]
            assert 3 <= result["evaluations"] < 40
            assert desk.artifact(job.id, "report")

    asyncio.run(play())


def test_a_job_whose_time_is_spent_keeps_what_it_has(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    async def play() -> None:
        async with running(database, slots, limit_s=1e-9) as runner:
            jobs = [submit(desk, task) for task in (longer_task(4), layout_task(), sweep_task())]
            runner.wake()
            for job in jobs:
                found, result = await ended(desk, job)
                assert found.stopped_by == result["stopped_by"] == "time"
                assert found.progress.computed_s > 0

    asyncio.run(play())


def test_the_best_so_far_outlives_its_runner(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    """A killed runner says nothing: its lease expires, and the next runner continues from the last
    commit.
    """

    async def play() -> None:
        job = submit(desk, longer_task(5))
        first = Runner(Leases(database, "one"), slots, 2, budget_s=0.0)
        await first.start()
        await until(lambda: desk.get(job.id, None).progress.done > 5)
        with database.write() as connection:  # another claims it before the first one can write
            connection.execute(jobs_table.update().values(lease_until_s=0.0))
        await first.drain()
        before = desk.finish(job.id, "ann")
        assert before.best is not None
        async with running(database, slots, "two") as runner:
            runner.wake()
            found, result = await ended(desk, job)
        assert found.stopped_by == "user"
        assert result["best"]["iteration_ms"] <= before.best["iteration_ms"]

    asyncio.run(play())


def test_a_job_that_is_given_back_goes_on_where_it_was(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    async def play() -> None:
        task = longer_task(6)
        job = submit(desk, task)
        async with running(database, slots):
            await until(lambda: desk.get(job.id, None).progress.done > 5)
        before = desk.get(job.id, None)
        assert before.state == "queued"
        watched = Watched(slots)
        async with running(database, watched, "two") as runner:
            runner.wake()
            await finished(desk, {job.id: task})
        assert len(watched.tasks) <= 40 + 2 - before.progress.done
        assert desk.get(job.id, None).stopped_by is None

    asyncio.run(play())


def test_what_is_not_kept_goes_while_it_runs(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    old, young = submit(desk, tune_task()), submit(desk, sweep_task())
    for job in (old, young):
        desk.cancel(job.id, "ann")

    async def play() -> None:
        keep = Retention(database, Keep(jobs=1), period_s=0.1)
        runner = Runner(Leases(database, "one"), slots, 2, retention=keep)
        await runner.start()
        await until(lambda: not desk.page(None, wanted=JobFilter(kind="tune"))[0])
        await runner.drain()

    asyncio.run(play())
    assert desk.get(young.id, None).state == "cancelled"
