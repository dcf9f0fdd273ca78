"""What clusters measured is kept beside the tune."""

from __future__ import annotations

import pytest

from domino_tune.base.errors import ConflictError, KeyReuseError, NotFoundError
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.measurements import MAX_LIMIT, MOST_VALIDATIONS, Measurements
from domino_tune.service.sql.database import Database
from simulator.errors import InputError
from tests.real.domino_tune.service.made import key, submit


@pytest.fixture
def measurements(database: Database) -> Measurements:
    return Measurements(database)


def test_reports_are_listed_oldest_first(desk: JobDesk, measurements: Measurements) -> None:
    job, other = submit(desk), submit(desk)
    assert measurements.page(job.id) == ((), None)
    made = [measurements.add(job.id, b"%d" % number) for number in range(3)]
    measurements.add(other.id, b"another tune's")
    assert all(created for _, created in made)
    assert measurements.page(job.id) == (tuple(validation for validation, _ in made), None)
    assert [one.body for one in measurements.page(job.id)[0]] == [b"0", b"1", b"2"]
    assert made[0][0].job_id == job.id
    assert made[0][0].created_s > 1.7e9


def test_a_key_keeps_one_report(desk: JobDesk, measurements: Measurements) -> None:
    job = submit(desk)
    first, created = measurements.add(job.id, b"{}", key(route="validations"))
    again, created_again = measurements.add(job.id, b"{}", key(route="validations"))
    assert (created, created_again) == (True, False)
    assert again == first
    assert measurements.page(job.id) == ((first,), None)
    with pytest.raises(KeyReuseError):
        measurements.add(job.id, b"[]", key(route="validations", body=b"[]"))


def test_pages_are_read_one_by_one(desk: JobDesk, measurements: Measurements) -> None:
    job = submit(desk)
    made = [measurements.add(job.id, b"%d" % number)[0] for number in range(5)]
    first, cursor = measurements.page(job.id, limit=2)
    second, last = measurements.page(job.id, cursor, limit=3)
    assert (first + second, last) == (tuple(made), None)
    for bad in ({"cursor": "job_1"}, {"limit": 0}, {"limit": MAX_LIMIT + 1}):
        with pytest.raises(InputError):
            measurements.page(job.id, **bad)


def test_a_job_has_so_many_reports_and_no_more(desk: JobDesk, measurements: Measurements) -> None:
    job, other = submit(desk), submit(desk)
    for number in range(MOST_VALIDATIONS):
        measurements.add(job.id, b"{}", key(str(number), route="validations"))
    with pytest.raises(ConflictError, match=str(MOST_VALIDATIONS)):
        measurements.add(job.id, b"{}", key("more", route="validations"))
    assert not measurements.add(job.id, b"{}", key("0", route="validations"))[1]
    assert measurements.add(other.id, b"{}", key("more", route="validations"))[1]


@pytest.mark.parametrize("identity", ["job_" + "0" * 32, "job_1", "\0"])
def test_no_such_job(desk: JobDesk, measurements: Measurements, identity: str) -> None:
    with pytest.raises(NotFoundError):
        measurements.add(identity, b"{}", key())
    assert measurements.add(submit(desk).id, b"{}", key())[1]
