"""Hundreds of random steps of three workers and a user, beside a model that is a page long."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from sqlalchemy import update

from domino_tune.requests.service import JobState
from domino_tune.service.jobs import JobProgress
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Claimed, Leases, LostLeaseError
from domino_tune.service.sql import tables
from domino_tune.service.sql.database import Database
from tests.real.domino_tune.service.made import submit

WORKERS = ("worker-1", "worker-2", "worker-3")


@dataclass(kw_only=True)
class Modelled:
    """What a job must be; ``alive``: its lease runs."""

    state: JobState = "queued"
    fence: int = 0
    attempts: int = 0
    worker: str = ""
    alive: bool = False


class Model:
    """Does each step on the database and on the model, and holds them against each other."""

    def __init__(self, database: Database, chance: random.Random) -> None:
        self.database = database
        self.desk = JobDesk(database)
        self.leases = {name: Leases(database, name, lease_s=3600) for name in WORKERS}
        self.chance = chance
        self.jobs: dict[str, Modelled] = {}
        self.claims: list[tuple[str, Claimed]] = []

    def submit(self) -> None:
        self.jobs[submit(self.desk).id] = Modelled()

    def claim(self) -> None:
        name = self.chance.choice(WORKERS)
        claimed = self.leases[name].claim()
        free = [key for key, job in self.jobs.items() if is_free(job, name)]
        if not free:
            assert claimed is None
            return
        assert claimed
        assert claimed.job.id == min(free)
        job = self.jobs[claimed.job.id]
        job.state, job.worker, job.alive = "running", name, True
        job.fence += 1
        job.attempts += 1
        self.claims.append((name, claimed))

    def expire(self) -> None:
        running = [key for key, job in self.jobs.items() if job.state == "running"]
        if running:
            key = self.chance.choice(running)
            self.jobs[key].alive = False
            with self.database.write() as connection:
                connection.execute(
                    update(tables.jobs).where(tables.jobs.c.id == key).values(lease_until_s=1.0)
                )

    def delete(self) -> None:
        if self.jobs and self.chance.random() < 0.3:
            key = self.chance.choice(list(self.jobs))
            del self.jobs[key]
            self.desk.delete(key, "ann")

    def renew(self) -> None:
        self.write(lambda leases, mine: leases.renew(mine))

    def progress(self) -> None:
        self.write(lambda leases, mine: leases.progress(mine, JobProgress(done=1)))

    def finish(self) -> None:
        self.write(lambda leases, mine: leases.finish(mine, b"{}", {}), to="done")

    def fail(self) -> None:
        self.write(lambda leases, mine: leases.fail(mine, {}), to="failed")

    def release(self) -> None:
        self.write(lambda leases, mine: leases.release(mine), to="queued")

    def write(
        self,
        step: Callable[[Leases, Claimed], object],
        to: JobState = "running",
    ) -> None:
        """Any claim that ever was tries to write; only the newest may."""
        if not self.claims:
            return
        name, claimed = self.chance.choice(self.claims)
        job = self.jobs.get(claimed.job.id, Modelled(state="failed"))
        held = job.state == "running" and job.fence == claimed.job.fence
        if not held:
            with pytest.raises(LostLeaseError):
                step(self.leases[name], claimed)
            return
        step(self.leases[name], claimed)
        job.state = to
        job.alive = job.alive or step.__qualname__.startswith("Model.renew")
        if to == "queued":
            job.worker, job.alive = "", False
            job.attempts -= 1

    def check(self) -> None:
        for key, job in self.jobs.items():
            found = self.desk.get(key, "ann")
            assert (found.state, found.fence, found.attempts) == (
                job.state, job.fence, job.attempts,
            )  # fmt: skip


def is_free(job: Modelled, name: str) -> bool:
    lost = job.state == "running" and not job.alive and job.worker != name
    return job.state == "queued" or lost


@pytest.mark.parametrize("seed", [1, 2])
def test_random_steps(database: Database, seed: int) -> None:
    chance = random.Random(seed)
    model = Model(database, chance)
    steps = [
        model.submit, model.claim, model.claim, model.expire, model.delete, model.renew,
        model.progress, model.finish, model.fail, model.release,
    ]  # fmt: skip
    for _ in range(300):
        chance.choice(steps)()
    model.check()
    assert {job.state for job in model.jobs.values()} >= {"done", "failed"}
