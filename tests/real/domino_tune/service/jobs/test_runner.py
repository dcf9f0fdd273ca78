"""Jobs that a runner takes from the desk: done, stopped, deleted, dead, and those that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from domino_tune.base.errors import StorageError
from domino_tune.service.executors import JobExecutor, Limits, NoWorkerError, Wanted
from domino_tune.service.executors.registry import LocalExecutor
from domino_tune.service.jobs import JobRecord, NewJob
from domino_tune.service.jobs import runner as module
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.jobs.runner import MOST_ATTEMPTS, Runner
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.tables import jobs
from domino_tune.service.work import JobStep, Outcome
from tests.real.domino_tune.service.works import odd
from tests.support.processes import PATIENCE_S, wait_until


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


@contextmanager
def running(
    database: Database, executor: JobExecutor | None = None, leases: Leases | None = None
) -> Iterator[Runner]:
    made = Runner(
        leases or Leases(database, "worker"), executor or LocalExecutor(2, odd), 2,
        limits=Limits(memory_bytes=1 << 30),
    )  # fmt: skip
    made.start()
    try:
        yield made
    finally:
        made.close(PATIENCE_S)


def submit(desk: JobDesk, work: str) -> JobRecord:
    new = NewJob(kind="whatif", owner="ann", request={}, task=work.encode())
    return desk.submit(new)[0]


def until(desk: JobDesk, job: JobRecord, found: Callable[[JobRecord], object]) -> JobRecord:
    wait_until(lambda: bool(found(desk.get(job.id, None))))
    return desk.get(job.id, None)


def ended(desk: JobDesk, job: JobRecord) -> JobRecord:
    return until(desk, job, lambda now: now.ended)


def test_jobs_are_done_and_errors_are_told(database: Database, desk: JobDesk) -> None:
    with running(database):
        good, bad, bug, big = (submit(desk, w) for w in ("answer", "refuse", "bug", "grow"))
        assert ended(desk, good).attempts == 1
        assert b"pid" in desk.result(good.id)
        errors = [ended(desk, one).error for one in (bad, bug, big)]
    details = [error["detail"] for error in errors if error]
    assert details[0] == "It cannot be."
    assert "secret" not in details[1]
    assert "1,024 MiB" in details[2]


def test_a_job_is_stopped_and_another_deleted(database: Database, desk: JobDesk) -> None:
    with running(database) as runner:
        kept, gone = submit(desk, "wait"), submit(desk, "wait")
        for job in (kept, gone):
            until(desk, job, lambda now: now.progress.done > 2)
        assert desk.points(kept.id)
        desk.stop(kept.id, "ann")
        assert (done := ended(desk, kept)).state == "done"
        assert done.stopped_by == "user"
        desk.delete(gone.id, "ann")
        wait_until(lambda: runner.running == 0)


def test_what_is_wanted_is_heard_before_the_next_look(
    database: Database, desk: JobDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", PATIENCE_S)
    with running(database) as runner:
        kept, gone = submit(desk, "wait"), submit(desk, "wait")
        runner.wake()
        for job in (kept, gone):
            until(desk, job, lambda now: now.progress.done)
        desk.stop(kept.id, "ann")
        runner.look()
        assert ended(desk, kept).stopped_by == "user"
        desk.delete(gone.id, "ann")
        runner.look()
        wait_until(lambda: runner.running == 0)
        monkeypatch.setattr(module, "POLL_S", 1.0)


def test_a_killed_job_begins_again_and_its_progress_does_not_fall(
    database: Database, desk: JobDesk, tmp_path: Path
) -> None:
    (tmp_path / "lives").mkdir()
    seen: list[int] = []
    with running(database):
        job = submit(desk, f"die {tmp_path}/lives 2")

        def look(now: JobRecord) -> bool:
            seen.append(now.progress.done)
            return now.ended or "attempt 3" in now.progress.text

        until(desk, job, look)
        done = ended(desk, job)
    assert (done.state, done.attempts, done.best) == ("done", 3, {"iteration_ms": 8})
    assert seen == sorted(seen)


def test_after_three_deaths_a_job_fails_and_says_so(
    database: Database, desk: JobDesk, tmp_path: Path
) -> None:
    (tmp_path / "lives").mkdir()
    with running(database):
        done = ended(desk, submit(desk, f"die {tmp_path}/lives 99"))
    assert done.attempts == MOST_ATTEMPTS
    assert done.error
    assert "3 attempts ended" in done.error["detail"]
    assert "SIGKILL" in done.error["detail"]


def test_a_job_that_outlived_three_services_fails(database: Database, desk: JobDesk) -> None:
    job = submit(desk, "answer")
    for number in range(MOST_ATTEMPTS):
        leases = Leases(database, f"dead-{number}", lease_s=0.0)
        assert leases.claim()
    with running(database):
        done = ended(desk, job)
    assert done.error
    assert "the service that ran it died" in done.error["detail"]


def test_a_job_is_given_back_when_the_service_stops(database: Database, desk: JobDesk) -> None:
    job = submit(desk, "wait")
    with running(database):
        until(desk, job, lambda now: now.progress.done)
    now = desk.get(job.id, None)
    assert (now.state, now.attempts) == ("queued", 0)


class Away(LocalExecutor):
    """One that lacks a worker the first times."""

    times = 3

    def run(
        self,
        task: bytes,
        limits: Limits,
        tell: Callable[[JobStep], None],
        wanted: Callable[[], Wanted],
    ) -> Outcome:
        if self.times:
            type(self).times -= 1
            raise NoWorkerError("No worker is there.")
        return super().run(task, limits, tell, wanted)


def test_a_job_says_what_it_waits_for(database: Database, desk: JobDesk) -> None:
    texts: set[str] = set()
    with running(database, Away(2, odd)):
        job = submit(desk, "answer")

        def look(now: JobRecord) -> bool:
            texts.add(now.progress.text)
            return now.ended

        until(desk, job, look)
    assert "waits: No worker is there." in texts
    assert desk.get(job.id, None).attempts == 1


class Full(Leases):
    """Leases on a database that stores no results."""

    def finish(self, *arguments: Any, **named: Any) -> None:
        raise StorageError("The result is too large.")


def test_a_result_that_cannot_be_stored_fails_its_job(
    database: Database, desk: JobDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_S", 0.3)
    with running(database, leases=Full(database, "worker")):
        done = ended(desk, submit(desk, "answer"))
    assert done.error
    assert done.error["detail"] == "The result is too large."


def test_a_lease_that_expired_costs_nothing(database: Database, desk: JobDesk) -> None:
    with running(database) as runner:
        job, other = submit(desk, "wait"), submit(desk, "wait")
        until(desk, other, lambda now: now.progress.done)
        assert runner.running == 2  # nobody is free to claim
        with database.write() as connection:
            connection.execute(update(jobs).values(lease_until_s=1.0))
        for one in (job, other):
            desk.stop(one.id, "ann")
            assert ended(desk, one).attempts == 1
