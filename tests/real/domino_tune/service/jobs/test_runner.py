"""The runner, on real databases, with real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from domino_tune.requests.problems import plain_problem
from domino_tune.service.executors.slots import SlotExecutor
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.job import Point
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.jobs.runner import MOST_ATTEMPTS
from domino_tune.service.sql.database import Database, open_database
from domino_tune.service.sql.tables import jobs as jobs_table
from domino_tune.service.tasks import work
from domino_tune.service.tasks.quantum import QuantumResult, StopReason
from tests.real.domino_tune.service.jobs.runners import Watched, finished, running, submit, until
from tests.support.postgres import Postgres
from tests.support.tasks import longer_task, paused, sweep_task, tune_task

POISON = b'"seed":666,'


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Desk and leases, which the runner uses, are tested on both kinds of database."""
    return sqlite_url


class Poisonable(Watched):
    """Quanta of some tasks kill the process they run in."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(deadly_advance, *args, **kwargs)


def deadly_advance(
    task: bytes, state: bytes, budget_s: float, stopped_by: StopReason | None
) -> QuantumResult:
    if POISON in task and b"history" in state:
        os.kill(os.getpid(), signal.SIGKILL)
    return work.advance(task, state, budget_s, stopped_by)


def test_jobs_end_with_their_results(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    tasks = [tune_task(), sweep_task(), longer_task(1), tune_task(search="bayes", trials=5)]

    async def play() -> None:
        async with running(database, slots) as runner:
            jobs = {submit(desk, task).id: task for task in tasks}
            runner.wake()
            await finished(desk, jobs)
            sweep = list(jobs)[1]
            made, _ = desk.points(sweep)
            assert [point.index for point in made] == [0, 1, 2, 3]
            assert desk.get(sweep, None).progress.done == 4
            assert desk.get(next(iter(jobs)), None).best is not None
            # The end is in the database before the runner's thread has reported it.
            await until(lambda: runner.running == 0)

    asyncio.run(play())


def test_what_cannot_be_done_fails_and_says_why(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    async def play() -> None:
        async with running(database, slots) as runner:
            task = sweep_task(sweep="tp=7,11")
            job = submit(desk, task)
            runner.wake()
            await until(lambda: desk.get(job.id, None).ended)
            failed = desk.get(job.id, None)
            assert failed.state == "failed"
            assert failed.error is not None
            assert failed.error["status"] == 422
            assert "No point of the sweep can be predicted" in failed.error["detail"]

    asyncio.run(play())


def test_what_ends_every_service_fails_at_last(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    watched = Watched(slots)

    async def play() -> None:
        job = submit(desk, tune_task())
        with database.write() as connection:
            connection.execute(jobs_table.update().values(attempts=MOST_ATTEMPTS))
        async with running(database, watched):
            await until(lambda: desk.get(job.id, None).ended)
        failed = desk.get(job.id, None)
        assert failed.state == "failed"
        assert failed.error is not None
        assert "10 attempts" in failed.error["detail"]
        assert not watched.tasks

    asyncio.run(play())


def test_a_bug_is_not_told_to_users() -> None:
    problem = plain_problem(ZeroDivisionError("/secret/path"))
    assert problem["status"] == 500
    assert "secret" not in str(problem)


def test_cancelling_takes_effect_within_a_quantum(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    watched = Watched(slots)

    async def play() -> None:
        async with running(database, watched) as runner:
            task = longer_task(2)
            job = submit(desk, task)
            runner.wake()
            await until(lambda: desk.get(job.id, None).progress.done > 2)
            desk.cancel(job.id, "ann")
            before = watched.tasks.count(task)
            await until(lambda: runner.running == 0)
            assert watched.tasks.count(task) <= before + 1
            assert desk.get(job.id, None).state == "cancelled"
            after = tune_task()
            await finished(desk, {submit(desk, after).id: after})

    asyncio.run(play())


def poison_fails_alone(database: Database, desk: JobDesk, executor: Executor) -> None:
    poisonable = Poisonable(executor)

    async def play() -> None:
        async with running(database, poisonable) as runner:
            poison = longer_task(666)
            sick = submit(desk, poison)
            tasks = [tune_task(search="random", trials=4), sweep_task(), tune_task()]
            jobs = {submit(desk, task).id: task for task in tasks}
            runner.wake()
            await finished(desk, jobs)
            await until(lambda: desk.get(sick.id, None).ended)
            failed = desk.get(sick.id, None)
            assert failed.state == "failed"
            assert failed.error is not None
            assert failed.error["title"] == "Run failed"
            assert "died" in failed.error["detail"]
            assert poisonable.tasks.count(poison) == 1 + 2  # one quantum, then the deadly one twice

    asyncio.run(play())


def test_a_poison_job_fails_alone(database: Database, desk: JobDesk, slots: SlotExecutor) -> None:
    poison_fails_alone(database, desk, slots)


def test_a_killed_worker_costs_nothing(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    async def play() -> None:
        async with running(database, slots) as runner:
            jobs = {submit(desk, task).id: task for task in (longer_task(4), sweep_task())}
            runner.wake()
            await until(lambda: desk.get(next(iter(jobs)), None).progress.done > 3)
            for pid in slots.pids:
                os.kill(pid, signal.SIGKILL)
            await finished(desk, jobs)

    asyncio.run(play())


def test_drained_it_gives_its_jobs_back(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    tasks = [longer_task(5), longer_task(6), sweep_task(), tune_task()]

    async def play() -> None:
        jobs = {submit(desk, task).id: task for task in tasks}
        async with running(database, slots) as runner:
            first = next(iter(jobs))
            await until(lambda: desk.get(first, None).progress.done > 2 and runner.running > 1)
        found = [desk.get(identity, None) for identity in jobs]
        assert {job.state for job in found} <= {"queued", "done"}
        assert found[0].state == "queued"
        assert {job.attempts for job in found if job.state == "queued"} == {0}
        async with running(database, slots, "two"):
            await finished(desk, jobs)

    asyncio.run(play())


def test_points_that_were_committed_are_not_made_again(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    task = sweep_task()
    job, leases, watched = submit(desk, task), Leases(database, "one"), Watched(slots)
    quanta = paused(task)[1]
    known = [Point(index=index, body=body) for one in quanta for index, body in one.points][:2]
    claimed = leases.claim()
    assert claimed
    leases.add_points(claimed, known)
    leases.release(claimed)

    async def play() -> None:
        async with running(database, watched, "two"):
            await finished(desk, {job.id: task})

    asyncio.run(play())
    assert len(watched.tasks) == len(quanta) + 1 - len(known)
    assert [one.index for one in desk.points(job.id)[0]] == [0, 1, 2, 3]


def test_a_database_that_is_away_for_a_while_is_waited_for(
    postgres: Postgres, slots: SlotExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    database = open_database(postgres.new_database())
    desk = JobDesk(database)

    async def play() -> None:
        async with running(database, slots) as runner:
            jobs = {submit(desk, task).id: task for task in (longer_task(7), tune_task())}
            runner.wake()
            await until(lambda: desk.get(next(iter(jobs)), None).progress.done > 3)
            await asyncio.to_thread(postgres.stop)
            await until(lambda: "cannot write" in caplog.text)
            await asyncio.to_thread(postgres.start)
            await finished(desk, jobs)

    asyncio.run(play())
    database.close()


def test_a_runner_that_was_stopped_past_its_lease_goes_on(
    database: Database, desk: JobDesk, slots: SlotExecutor
) -> None:
    """Its jobs are lost to it, and may be its own again: nothing is done twice, or forgotten."""

    async def play() -> None:
        async with running(database, slots) as runner:
            jobs = {submit(desk, task).id: task for task in (longer_task(9), longer_task(10))}
            runner.wake()
            await until(lambda: desk.get(next(iter(jobs)), None).progress.done > 2)
            with database.write() as connection:  # as after SIGSTOP; the loop waits for this
                connection.execute(jobs_table.update().values(lease_until_s=0.0))
            await finished(desk, jobs)
            assert all(desk.get(identity, None).fence == 2 for identity in jobs)
            await until(lambda: runner.running == 0)

    asyncio.run(play())
