"""A job in a real PostgreSQL, which is killed and comes back."""

from __future__ import annotations

from contextlib import closing

from domino_tune.service.jobs import NewJob
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.sql.database import open_database
from tests.support.postgres import Postgres


def test_a_job_is_kept_and_done(postgres: Postgres) -> None:
    url = postgres.new_database()
    with closing(open_database(url)) as database:
        new = NewJob(kind="tune", owner="ann", request={"tp": 2}, task=b"what to do")
        job, created = JobDesk(database).submit(new)
    assert created
    postgres.stop()
    postgres.start()
    with closing(open_database(url)) as database:
        desk, leases = JobDesk(database), Leases(database, "worker")
        assert desk.get(job.id, "ann") == job
        claimed = leases.claim()
        assert claimed
        assert claimed.task == b"what to do"
        leases.finish(claimed, b"an answer", {})
        assert desk.get(job.id, "ann").state == "done"
        assert desk.result(job.id) == b"an answer"
