"""What is not kept is deleted, with all that belongs to it; what is needed stays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from sqlalchemy import Table, func, select, update

from domino_tune.base.errors import NotFoundError, QuotaError
from domino_tune.service.jobs import JobProgress, JobRecord, NewJob, Point
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Claimed, Leases
from domino_tune.service.jobs.retention import DAY_S, Collected, Keep, Retention, stored_bytes
from domino_tune.service.sql import tables
from domino_tune.service.sql.database import Database
from tests.real.domino_tune.service.made import new_job, submit

KEPT = (tables.jobs, tables.tasks, tables.points, tables.artifacts)


def counted(database: Database, table: Table) -> int:
    with database.read() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


def claim(database: Database) -> Claimed:
    claimed = Leases(database, "worker").claim()
    assert claimed
    return claimed


def done(database: Database, desk: JobDesk, number: int = 0, owner: str = "ann") -> JobRecord:
    """A job that has ended, with every part that a job can have."""
    submit(desk, owner, number=number)
    leases, claimed = Leases(database, "worker"), claim(database)
    leases.progress(claimed, JobProgress(done=1), {"plan": number})
    leases.add_points(claimed, [Point(index=0, body=b"a point")])
    leases.finish(claimed, b"{}", {"plan": b"x" * 1000})
    return desk.get(claimed.job.id, None)


def grown_old(database: Database, job: JobRecord, days: float) -> None:
    with database.write() as connection:
        connection.execute(
            update(tables.jobs)
            .where(tables.jobs.c.id == job.id)
            .values(finished_s=tables.jobs.c.finished_s - days * DAY_S)
        )


def test_a_deleted_job_takes_all_with_it(database: Database, desk: JobDesk) -> None:
    job = done(database, desk)
    desk.delete(job.id, "ann")
    with pytest.raises(NotFoundError):
        desk.get(job.id, "ann")
    with pytest.raises(NotFoundError):
        desk.delete(job.id, "ann")
    assert Retention(database, Keep()).collect() == Collected(jobs=0, bodies=1)
    assert [counted(database, table) for table in KEPT] == [0] * len(KEPT)


def test_only_ones_own_is_deleted(database: Database, desk: JobDesk) -> None:
    ended, waits = done(database, desk), submit(desk, number=1)
    with pytest.raises(NotFoundError):
        desk.delete(ended.id, "bob")
    assert desk.get(ended.id, "ann") == ended
    claim(database)
    desk.delete(waits.id, "ann")
    with pytest.raises(NotFoundError):
        desk.get(waits.id, "ann")


def test_old_jobs_go(database: Database, desk: JobDesk) -> None:
    old, young = done(database, desk, 0), done(database, desk, 1)
    grown_old(database, old, days=31)
    waits = submit(desk, number=2)
    assert Retention(database, Keep()).collect() == Collected(jobs=1, bodies=1)
    with pytest.raises(NotFoundError):
        desk.get(old.id, None)
    assert desk.get(young.id, None) == young
    assert desk.result(young.id) == b"{}"
    assert desk.get(waits.id, None) == waits


def test_the_newest_of_each_owner_stay(database: Database, desk: JobDesk) -> None:
    made = [done(database, desk, number, owner) for number in range(3) for owner in ("ann", "bob")]
    assert Retention(database, Keep(jobs=2)).collect().jobs == 2
    assert {job.id for job in desk.page(None)[0]} == {job.id for job in made[2:]}


def test_many_go_in_several_transactions(database: Database, desk: JobDesk) -> None:
    for number in range(120):
        new = new_job(number=number)
        desk.submit(replace(new, result=b"{}"))
    assert Retention(database, Keep(jobs=1)).collect() == Collected(jobs=119, bodies=119)
    assert len(desk.page("ann")[0]) == 1


def test_what_is_stored_of_an_owner_is_counted(database: Database, desk: JobDesk) -> None:
    done(database, desk, number=7)
    parts = b"7" + b"a point" + b"{}" + b"x" * 1000
    with database.read() as connection:
        assert stored_bytes(connection, "ann") == len(parts)
        assert stored_bytes(connection, "bob") == 0


def test_the_oldest_give_way_to_a_new_job(database: Database, desk: JobDesk) -> None:
    first, second = done(database, desk, 0), done(database, desk, 1)
    theirs = done(database, desk, 2, "bob")
    tight = JobDesk(database, Keep(size_bytes=2000))
    tight.submit(new_job(number=3))
    with pytest.raises(NotFoundError):
        desk.get(first.id, None)
    assert desk.get(second.id, None) == second
    assert desk.get(theirs.id, None) == theirs


def test_unfinished_jobs_fill_a_quota(database: Database) -> None:
    tight = JobDesk(database, Keep(size_bytes=100))
    large = NewJob(kind="tune", owner="ann", request={}, task=b"x" * 60)
    tight.submit(large)
    with pytest.raises(QuotaError, match="Delete jobs"):
        tight.submit(large)
    tight.submit(NewJob(kind="tune", owner="bob", request={}, task=b"x" * 60))


def test_a_task_that_is_taken_up_again_stays(database: Database, desk: JobDesk) -> None:
    """Jobs with one task are made and deleted while bodies are collected."""
    barrier = Barrier(3)

    def come_and_go(owner: str) -> None:
        barrier.wait()
        for _ in range(40):
            job = submit(desk, owner, number=7)
            desk.delete(job.id, owner)
        submit(desk, owner, number=7)

    def collect() -> None:
        barrier.wait()
        for _ in range(60):
            Retention(database, Keep()).collect()

    with ThreadPoolExecutor(3) as pool:
        for future in (
            pool.submit(come_and_go, "ann"), pool.submit(come_and_go, "bob"), pool.submit(collect),
        ):  # fmt: skip
            future.result()
    assert [claim(database).task, claim(database).task] == [b"7", b"7"]


def test_one_of_many_collects(database: Database) -> None:
    replicas = [Retention(database, Keep(), period_s=1000) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: one.collect_if_due(), replicas))
    assert sum(one is not None for one in found) == 1
    assert replicas[0].collect_if_due() is None
    again = Retention(database, Keep(), period_s=0)
    with database.write() as connection:
        connection.execute(update(tables.duties).values(next_s=0))
    assert again.collect_if_due() is not None
    assert again.collect_if_due() is not None
