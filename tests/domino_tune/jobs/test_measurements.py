"""What clusters measured is kept beside the tune."""

from __future__ import annotations

import pytest

from domino_tune.errors import KeyReuseError, NotFoundError
from domino_tune.jobs.database import Database
from domino_tune.jobs.desk import JobDesk
from domino_tune.jobs.measurements import Measurements
from tests.domino_tune.jobs.made import key, submit


@pytest.fixture
def measurements(database: Database) -> Measurements:
    return Measurements(database)


def test_reports_are_listed_oldest_first(desk: JobDesk, measurements: Measurements) -> None:
    job, other = submit(desk), submit(desk)
    assert measurements.list(job.id) == ()
    made = [measurements.add(job.id, b"%d" % number) for number in range(3)]
    measurements.add(other.id, b"another tune's")
    assert all(created for _, created in made)
    assert measurements.list(job.id) == tuple(validation for validation, _ in made)
    assert [one.body for one in measurements.list(job.id)] == [b"0", b"1", b"2"]
    assert made[0][0].job_id == job.id
    assert made[0][0].created_s > 1.7e9


def test_a_key_keeps_one_report(desk: JobDesk, measurements: Measurements) -> None:
    job = submit(desk)
    first, created = measurements.add(job.id, b"{}", key(route="validations"))
    again, created_again = measurements.add(job.id, b"{}", key(route="validations"))
    assert (created, created_again) == (True, False)
    assert again == first
    assert measurements.list(job.id) == (first,)
    with pytest.raises(KeyReuseError):
        measurements.add(job.id, b"[]", key(route="validations", body=b"[]"))


@pytest.mark.parametrize("identity", ["job_" + "0" * 32, "job_1", "\0"])
def test_no_such_job(desk: JobDesk, measurements: Measurements, identity: str) -> None:
    with pytest.raises(NotFoundError):
        measurements.add(identity, b"{}", key())
    assert measurements.add(submit(desk).id, b"{}", key())[1]
