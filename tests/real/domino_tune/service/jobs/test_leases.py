"""A job has one owner at a time, and only who holds its newest lease may write."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, update

from domino_tune.base.errors import ConflictError
from domino_tune.service.jobs import JobProgress, Point
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Claimed, Leases, LostLeaseError
from domino_tune.service.sql import tables
from domino_tune.service.sql.database import Database
from tests.real.domino_tune.service.made import submit
from tests.real.domino_tune.service.owners import owner, work_together
from tests.support.processes import PATIENCE_S

WRITES: dict[str, Callable[[Leases, Claimed], object]] = {
    "renew": lambda leases, claimed: leases.renew(claimed),
    "progress": lambda leases, claimed: leases.progress(claimed, JobProgress(done=9)),
    "add_points": lambda leases, claimed: leases.add_points(
        claimed, [Point(index=9, body=b"late")]
    ),
    "finish": lambda leases, claimed: leases.finish(claimed, b"late", {"plan": b"late"}),
    "fail": lambda leases, claimed: leases.fail(claimed, {"title": "late"}),
    "release": lambda leases, claimed: leases.release(claimed),
}


@pytest.fixture
def leases(database: Database) -> Leases:
    return Leases(database, "worker-1")


def claim(leases: Leases) -> Claimed:
    claimed = leases.claim()
    assert claimed
    return claimed


def expire(database: Database, passed_s: float = 1000) -> None:
    """Let all leases be as if this time had passed."""
    with database.write() as connection:
        until_s = tables.jobs.c.lease_until_s - passed_s
        connection.execute(update(tables.jobs).values(lease_until_s=until_s))


def test_nothing_to_claim(leases: Leases) -> None:
    assert leases.claim() is None


def test_the_oldest_first_and_each_once(desk: JobDesk, leases: Leases) -> None:
    made = [submit(desk, number=number).id for number in range(3)]
    claimed = [claim(leases) for _ in made]
    assert [one.job.id for one in claimed] == made
    assert [one.task for one in claimed] == [b"0", b"1", b"2"]
    assert leases.claim() is None


def test_owners_share(desk: JobDesk, leases: Leases) -> None:
    for number in range(3):
        submit(desk, number=number)
    late = submit(desk, owner="bob", number=9).id
    claimed = [claim(leases) for _ in range(4)]
    assert claimed[1].job.id == late
    assert [one.task for one in claimed if one.job.owner == "ann"] == [b"0", b"1", b"2"]


def test_a_claimed_job(desk: JobDesk, leases: Leases) -> None:
    job = submit(desk)
    claimed = claim(leases)
    assert claimed.job == desk.get(job.id, "ann")
    assert (claimed.job.state, claimed.job.attempts, claimed.job.fence) == ("running", 1, 1)
    assert claimed.job.started_s is not None


def test_progress_is_seen(desk: JobDesk, leases: Leases) -> None:
    submit(desk)
    claimed = claim(leases)
    leases.progress(claimed, JobProgress(done=1, total=9, text="one"), {"iteration_ms": 1.5})
    leases.progress(claimed, JobProgress(done=2, text="two"))
    job = desk.get(claimed.job.id, "ann")
    assert job.progress == JobProgress(done=2, total=None, text="two")
    assert job.best == {"iteration_ms": 1.5}
    assert job.version == claimed.job.version + 2


def test_renewing_changes_nothing_that_is_seen(desk: JobDesk, leases: Leases) -> None:
    submit(desk)
    claimed = claim(leases)
    leases.renew(claimed)
    assert desk.get(claimed.job.id, "ann") == claimed.job


def test_a_renewed_lease_runs_on(desk: JobDesk, database: Database) -> None:
    submit(desk)
    leases = Leases(database, "worker-1", lease_s=2 * PATIENCE_S)
    claimed = claim(leases)
    for _ in range(3):
        expire(database, PATIENCE_S)
        leases.renew(claimed)
        assert Leases(database, "worker-2").claim() is None
    leases.finish(claimed, b"{}", {})


def test_a_failed_job(desk: JobDesk, leases: Leases) -> None:
    submit(desk)
    leases.fail(claim(leases), {"title": "Infeasible plan", "status": 422})
    job = desk.page("ann")[0][0]
    assert (job.state, job.error) == ("failed", {"title": "Infeasible plan", "status": 422})
    assert job.finished_s is not None
    assert leases.claim() is None


def test_points_that_are_there_stay(desk: JobDesk, leases: Leases) -> None:
    submit(desk, kind="whatif")
    claimed = claim(leases)
    leases.add_points(claimed, [Point(index=0, body=b"first")])
    leases.add_points(claimed, [Point(index=0, body=b"again"), Point(index=1, body=b"new")])
    found = desk.points(claimed.job.id)
    assert [point.body for point in found] == [b"first", b"new"]


@pytest.mark.parametrize("write", WRITES)
def test_what_another_has_taken_over_stays_its(
    desk: JobDesk, database: Database, leases: Leases, write: str
) -> None:
    submit(desk)
    late = claim(leases)
    expire(database)
    assert leases.claim() is None  # it still works on it
    others = Leases(database, "worker-2")
    mine = claim(others)
    assert (mine.job.id, mine.job.attempts, mine.job.fence) == (late.job.id, 2, 2)
    with pytest.raises(LostLeaseError):
        WRITES[write](leases, late)
    others.finish(mine, b"mine", {"plan": b"mine"})
    with pytest.raises(LostLeaseError):
        WRITES[write](leases, late)
    assert (desk.result(mine.job.id), desk.artifact(mine.job.id, "plan")) == (b"mine", b"mine")


@pytest.mark.parametrize("write", WRITES)
def test_who_is_not_its_owner_cannot_write(
    desk: JobDesk, database: Database, leases: Leases, write: str
) -> None:
    submit(desk)
    claimed = claim(leases)
    with pytest.raises(LostLeaseError):
        WRITES[write](Leases(database, "worker-2"), claimed)
    assert desk.get(claimed.job.id, None) == claimed.job


def test_a_stopped_process_finds_its_job_done(url: str, desk: JobDesk, database: Database) -> None:
    job = submit(desk)
    with owner("hold", url, "stopped") as stopped:
        assert stopped.stdin
        assert stopped.stdout
        assert stopped.stdout.readline() == f"claimed {job.id}\n"
        stopped.send_signal(signal.SIGSTOP)
        expire(database)
        leases = Leases(database, "next")
        claimed = claim(leases)
        leases.finish(claimed, b"in time", {})
        stopped.send_signal(signal.SIGCONT)
        stopped.stdin.write("go on\n")
        stopped.stdin.flush()
        assert stopped.stdout.readline() == f"lost {job.id}\n"
    assert desk.result(job.id) == b"in time"


def test_four_owners_finish_each_job_once(url: str, desk: JobDesk) -> None:
    owners, each = 4, 25  # tests/long: 8, 100
    worked = work_together(url, owners, each)
    assert len(worked.submitted) == owners * each
    assert sorted(worked.finished) == sorted(worked.submitted)
    assert desk.counts() == {"done": owners * each}
    assert {desk.get(job, None).attempts for job in worked.submitted} == {1}
    assert len({desk.artifact(job, "by") for job in worked.submitted}) > 1


def test_a_profile_is_shelved_with_the_end_or_neither(desk: JobDesk, database: Database) -> None:
    shelved: list[tuple[bytes, str]] = []

    def shelve(connection: Connection, file: bytes, owner: str) -> None:
        if file == b"taken":
            raise ConflictError("The name is taken.")
        shelved.append((file, owner))

    leases = Leases(database, "worker-1", shelve=shelve)
    job = submit(desk, owner="ann", kind="calibrate")
    claimed = claim(leases)
    with pytest.raises(ConflictError):
        leases.finish(claimed, b"{}", {"profile": b"taken"})
    assert desk.get(job.id, "ann").state == "running"
    leases.finish(claimed, b"{}", {"profile": b"free"})
    assert desk.get(job.id, "ann").state == "done"
    assert shelved == [(b"free", "ann")]


@pytest.mark.parametrize("name", WRITES)
def test_a_deleted_job_cannot_be_written(desk: JobDesk, leases: Leases, name: str) -> None:
    submit(desk)
    claimed = claim(leases)
    assert leases.asked([claimed]) == {claimed.job.id: None}
    desk.delete(claimed.job.id, "ann")
    assert leases.asked([claimed]) == {}
    with pytest.raises(LostLeaseError):
        WRITES[name](leases, claimed)


def test_past_its_lease_who_is_not_replaced_goes_on(
    desk: JobDesk, leases: Leases, database: Database
) -> None:
    submit(desk)
    claimed = claim(leases)
    expire(database)
    leases.renew(claimed)
    assert leases.claim() is None
    leases.finish(claimed, b"{}", {})
    assert desk.get(claimed.job.id, "ann").state == "done"


def test_what_died_is_counted_and_what_is_given_back_is_not(desk: JobDesk, leases: Leases) -> None:
    submit(desk)
    leases.release(claim(leases))
    first = claim(leases)
    assert first.job.attempts == 1
    leases.release(first, died=True)
    assert claim(leases).job.attempts == 2
