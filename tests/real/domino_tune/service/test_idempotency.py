"""A key makes one thing, however often and however fast it comes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import select, update

from domino_tune.base.errors import KeyReuseError, meaning_of
from domino_tune.service.idempotency import claim_key
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.retention import DAY_S
from domino_tune.service.sql import tables
from domino_tune.service.sql.database import Database, open_database
from tests.real.domino_tune.service.made import key, new_job


def test_the_same_key_makes_one_job(desk: JobDesk) -> None:
    first, created = desk.submit(new_job(), key())
    again, created_again = desk.submit(new_job(), key())
    assert (created, created_again) == (True, False)
    assert again == first
    assert len(desk.page(None)[0]) == 1


def test_a_key_is_known_without_its_job(desk: JobDesk) -> None:
    assert desk.replayed(key()) is None
    first, _ = desk.submit(new_job(), key())
    assert desk.replayed(key()) == first
    assert desk.replayed(key(owner="bob")) is None
    with pytest.raises(KeyReuseError):
        desk.replayed(key(body=b"two"))


def test_without_a_key_there_are_two(desk: JobDesk) -> None:
    assert desk.submit(new_job())[0].id != desk.submit(new_job())[0].id


def test_another_body_is_refused(desk: JobDesk) -> None:
    desk.submit(new_job(), key(body=b"one"))
    with pytest.raises(KeyReuseError, match="another body") as caught:
        desk.submit(new_job(), key(body=b"two"))
    assert meaning_of(caught.value).http_status == 422
    assert len(desk.page(None)[0]) == 1


def test_keys_of_other_owners_and_routes_are_others(desk: JobDesk) -> None:
    keys = [key(), key(owner="bob"), key(route="sweeps")]
    assert len({desk.submit(new_job(), one)[0].id for one in keys}) == 3


def test_what_fails_leaves_no_key(desk: JobDesk, database: Database) -> None:
    def crash() -> None:
        with database.write() as connection:
            assert claim_key(connection, key(), "an answer") is None
            raise RuntimeError("before the thing was made")

    with pytest.raises(RuntimeError):
        crash()
    assert desk.submit(new_job(), key())[1]


def test_a_day_later_the_key_is_new(desk: JobDesk, database: Database) -> None:
    first, _ = desk.submit(new_job(), key())
    desk.submit(new_job(), key("other"))
    age = update(tables.idempotency).where(tables.idempotency.c.key == "key-1")
    for older_s in (DAY_S - 600, 600):
        assert desk.replayed(key()) is not None
        with database.write() as connection:
            connection.execute(age.values(created_s=tables.idempotency.c.created_s - older_s))
    assert desk.replayed(key()) is None
    second, created = desk.submit(new_job(), key())
    assert created
    assert second.id != first.id
    with database.read() as connection:
        assert len(connection.execute(select(tables.idempotency)).all()) == 2


@pytest.mark.parametrize("databases", [1, 2], ids=["one-replica", "two-replicas"])
def test_a_race_makes_one_job(url: str, databases: int) -> None:
    replicas = [open_database(url) for _ in range(databases)]
    runners, rounds = 8, 5
    barrier = Barrier(runners)

    def post(number: int) -> list[tuple[str, bool]]:
        desk = JobDesk(replicas[number % databases])
        made = []
        for index in range(rounds):
            barrier.wait()
            job, created = desk.submit(new_job(number=index), key(f"key-{index}"))
            made.append((job.id, created))
        return made

    with ThreadPoolExecutor(runners) as pool:
        found = list(pool.map(post, range(runners)))
    for answers in zip(*found, strict=True):
        assert len({identity for identity, _ in answers}) == 1
        assert sum(created for _, created in answers) == 1
    assert len(JobDesk(replicas[0]).page(None)[0]) == rounds
    for database in replicas:
        database.close()
