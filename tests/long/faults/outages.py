"""Outages of what a service needs, and ends that somebody asks for, each with a job that runs: what
the job, /readyz, the metrics and the log say meanwhile, and what is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from domino_tune.service.sql.database import open_database
from domino_tune.service.tokens import TokenDesk
from lab.verdict import Check, at_most, reported
from tests.support.asked import LAYOUTS, LONG, SMALL, good, job
from tests.support.dask_cluster import DaskCluster, dask_cluster, other_version, scheduling, working
from tests.support.postgres import running_postgres
from tests.support.processes import is_alive, reserved_port, wait_until
from tests.support.service import Service, job_processes, serving

AWAY_S: Final = 20.0
"""For how long PostgreSQL is stopped."""
STOP_S: Final = 2.0
SAY_S: Final = 15.0
"""Time in which a job, /readyz and the log say that the cluster lacks something."""
STREAM_S: Final = 10.0
LARGE: Final = {**LAYOUTS, "overrides": [], "gpus": 64, "global_batch_size": 1024}
"""A search of layouts of a minute."""


@dataclass(kw_only=True)
class Watch:
    """One service as its users and its operators see it, and what was checked."""

    service: Service
    client: httpx.Client
    roots: list[int] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def submit(self, body: dict[str, Any]) -> str:
        """Ask for a job; return its place."""
        place: str = good(self.client.post("/v1/jobs", json=body), 202)["links"]["self"]
        return place

    def look(self, place: str) -> dict[str, Any]:
        """Return a job."""
        found: dict[str, Any] = good(self.client.get(place))
        return found

    def ended(self, place: str) -> bool:
        """Return whether a job has ended."""
        return self.look(place)["state"] not in ("queued", "running")

    def running(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Ask for a job; return its place, and it as soon as its first trial is done."""
        place = self.submit(body)
        wait_until(lambda: self.computing() and self.look(place)["progress"]["done"] > 0)
        return place, self.look(place)

    def computing(self) -> list[int]:
        """Return the ids of the processes that compute jobs."""
        return job_processes(*(self.roots or [self.service.process.pid]))

    def says(self, place: str, text: str) -> bool:
        """Return whether a job says that it waits for something, in words with ``text``."""
        said = self.look(place)["progress"]["text"]
        return "waits: " in said and text in said

    def unready(self, text: str) -> bool:
        """Return whether /readyz answers 503 with ``text``."""
        answer = self.client.get("/readyz")
        return answer.status_code == 503 and text in answer.json()["detail"]

    def goes_on(self, place: str, before: dict[str, Any]) -> dict[str, Any]:
        """Wait until a job has more trials than before; return it."""

        def is_further() -> bool:
            now = self.look(place)
            further = now["progress"]["done"] > before["progress"]["done"]
            return bool(further or now["state"] == "done")

        wait_until(is_further)
        return self.look(place)

    def holds(self, what: str, ok: bool, measured: str = "") -> None:
        """Note whether something holds."""
        self.checks.append(Check(what, "yes", measured or ("yes" if ok else "no"), ok))

    def within(self, what: str, limit_s: float, condition: Callable[[], object]) -> None:
        """Wait until something holds, and note after how many seconds."""
        began_s = time.monotonic()
        wait_until(condition)
        self.checks.append(at_most(what, limit_s, time.monotonic() - began_s, "s", 1))

    def lacks(self, place: str, text: str) -> None:
        """Note that job, /readyz, metrics and log say what the cluster lacks."""
        self.within("seconds until the job says so", SAY_S, lambda: self.says(place, text))
        self.within("… until /readyz is 503 and says so", SAY_S, lambda: self.unready(text))
        self.holds("a line in the log", text in self.service.log.read_text())
        gauge = "domino_tune_workers 0.0" in self.client.get("/metrics").text
        self.holds("domino_tune_workers is 0", gauge)


@contextmanager
def watched(folder: Path, **given: Any) -> Iterator[Watch]:
    """Run a service, and watch it."""
    with serving(folder, **given) as service, service.client() as client:
        yield Watch(service=service, client=client)


# Dask ---------------------------------------------------------------------------------------------


def scheduler(folder: Path) -> list[Check]:
    """Kill the scheduler while a job runs; start another one at its address."""
    port = reserved_port()
    with (
        dask_cluster(folder / "dask", workers=1, port=port) as cluster,
        watched(folder, executor=cluster.address) as watch,
    ):
        watch.roots = [one.pid for one in cluster.workers]
        place, before = watch.running(job(LONG))
        cluster.scheduler.kill()
        cluster.scheduler.wait()
        watch.within("seconds until nothing computes", SAY_S, lambda: not watch.computing())
        watch.lacks(place, "No Dask scheduler answers")
        (again := folder / "again").mkdir()
        words = ("--no-dashboard", "--host", "127.0.0.1", "--port", str(port))
        with (
            scheduling(again, "scheduler", *words) as other,
            working(new := DaskCluster(folder=again, scheduler=other), "new") as worker,
        ):
            new.workers.append(worker)
            watch.roots = [worker.pid]
            _comes_back(watch, place, before)
    return watch.checks


def _comes_back(watch: Watch, place: str, before: dict[str, Any]) -> None:
    """Note that a job goes on with a worker that has come."""
    wait_until(lambda: watch.client.get("/readyz").status_code == 200)
    now = watch.goes_on(place, before)
    watch.holds("with a worker the job goes on, and /readyz is 200", True)
    watch.holds("and no attempt is counted", now["attempts"] == 1)
    again = "The executor can run jobs again" in watch.service.log.read_text()
    watch.holds("and the log says so", again)


def no_workers(folder: Path) -> list[Check]:
    """Ask a cluster without workers for a job, then start one."""
    with (
        dask_cluster(folder / "dask", workers=0) as cluster,
        watched(folder, executor=cluster.address) as watch,
    ):
        place = watch.submit(job(SMALL))
        watch.lacks(place, "has no workers")
        before = watch.look(place)
        with working(cluster, "one"):
            _comes_back(watch, place, before)
    return watch.checks


def other_ours(folder: Path) -> list[Check]:
    """Ask a cluster whose worker has another domino_tune for a job, then start one that fits."""
    return _other(folder, "domino_tune")


def other_distributed(folder: Path) -> list[Check]:
    """Ask a cluster whose worker has another distributed for a job, then start one that fits."""
    return _other(folder, "distributed")


def _other(folder: Path, package: str) -> list[Check]:
    with (
        dask_cluster(folder / "dask", workers=0) as cluster,
        working(cluster, "other", other_version(folder, package)),
        watched(folder, executor=cluster.address) as watch,
    ):
        place = watch.submit(job(SMALL))
        watch.lacks(place, f"{package} 9.9")
        before = watch.look(place)
        said = before["progress"]["text"]
        watch.holds("the text names the worker", "tcp://127.0.0.1:" in said)
        with working(cluster, "fitting"):
            _comes_back(watch, place, before)
    return watch.checks


# PostgreSQL ---------------------------------------------------------------------------------------


def postgres(folder: Path) -> list[Check]:
    """Stop PostgreSQL while a job runs and another one ends."""
    with running_postgres() as server, watched(
        folder, database_url=server.new_database(), workers=2
    ) as watch:  # fmt: skip
        long, before = watch.running(job(LONG))
        process = watch.computing()
        short, _ = watch.running(job({**SMALL, "trials": 30}))
        back_s = time.monotonic() + AWAY_S
        server.stop()
        wait_until(lambda: watch.unready("database"))
        watch.holds("/readyz is 503 and says so", True)
        wait_until(lambda: watch.computing() == process)
        threading.Event().wait(max(0.0, back_s - time.monotonic()))
        server.start()
        wait_until(lambda: watch.ended(short))
        watch.holds("a job that ended meanwhile is done", watch.look(short)["attempts"] == 1)
        now = watch.goes_on(long, before)
        watch.holds("the running one goes on in its process", watch.computing() == process)
        watch.holds("and no attempt is counted", now["attempts"] == 1)
        log = watch.service.log.read_text()
        watch.holds("the log says so", "The database does not answer" in log)
    return watch.checks


def postgres_of_two(folder: Path) -> list[Check]:
    """Stop PostgreSQL while a job of one of two replicas runs: the other one may claim it."""
    with ExitStack() as stack:
        server = stack.enter_context(running_postgres())
        url = server.new_database()
        both = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            both.append(stack.enter_context(watched(folder / name, database_url=url)))
        watch, other = both
        place = watch.submit(job(LONG))
        wait_until(lambda: watch.look(place)["progress"]["done"] > 0)
        server.stop()
        threading.Event().wait(AWAY_S)
        server.start()
        wait_until(lambda: watch.client.get(place).status_code == 200)
        now = watch.goes_on(place, watch.look(place))
        text, attempts = now["progress"]["text"], now["attempts"]
        watch.holds("the job goes on", now["state"] == "running")
        watch.holds("it began again at most once", attempts <= 2, f"attempt {attempts}")
        watch.holds("and says so", text.startswith("attempt 2: ") == (attempts == 2))
        wait_until(lambda: len(watch.computing() + other.computing()) == 1)
        watch.holds("one process computes it in the end", True)
    return watch.checks


# Ends that somebody asks for ----------------------------------------------------------------------


def stopped(folder: Path) -> list[Check]:
    """Stop jobs, and delete one, of this machine."""
    with watched(folder) as watch:
        _stop_and_delete(watch)
    return watch.checks


def stopped_on_dask(folder: Path) -> list[Check]:
    """Stop jobs, and delete one, of a Dask cluster."""
    with (
        dask_cluster(folder / "dask", workers=1) as cluster,
        watched(folder, executor=cluster.address) as watch,
    ):
        watch.roots = [one.pid for one in cluster.workers]
        _stop_and_delete(watch)
    return watch.checks


def _stop_and_delete(watch: Watch) -> None:
    for name, body in (("tune", job(LONG)), ("search of layouts", job(LARGE, "layout"))):
        place, _ = watch.running(body)
        _until_nothing_computes(watch, f"{name}, stopped", "POST", f"{place}/stop")
        wait_until(partial(watch.ended, place))
        now = watch.look(place)
        kept = now["stopped_by"] == "user" and bool(now["result"])
        watch.holds(f"{name}: done with the best so far", kept)
    place, _ = watch.running(job({**LONG, "seed": 1}))
    _until_nothing_computes(watch, "tune, deleted", "DELETE", place)


def _until_nothing_computes(watch: Watch, what: str, method: str, place: str) -> None:
    """End a job; check the seconds until its process is gone, and note its processor time, which on
    a busy machine is less."""
    (pid,) = watch.computing()
    process = psutil.Process(pid)
    cpu_s = before_s = sum(process.cpu_times()[:2])
    began_s = time.monotonic()
    assert watch.client.request(method, place).is_success
    while is_alive(pid):
        try:
            cpu_s = sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            break
        os.sched_yield()
    took_s = time.monotonic() - began_s
    watch.checks += [
        at_most(f"{what}: seconds until nothing computes", STOP_S, took_s, "s", 1),
        reported("… of processor time", f"{cpu_s - before_s:.1f} s"),
    ]


def revoked(folder: Path) -> list[Check]:
    """Revoke the tokens of an owner who has a job and a stream."""
    with closing(open_database(f"sqlite:///{folder}/jobs.db")) as database:
        desk = TokenDesk(database)
        first, second, other = (
            {"Authorization": f"Bearer {desk.add(name, name[:3], 'tune')}"}
            for name in ("ann-1", "ann-2", "bob-1")
        )
        with watched(folder, tokens_required=True, workers=2) as watch:
            watch.client.headers.update(second)
            place, before = watch.running(job(LONG))
            with watch.client.stream("GET", f"{place}/events", headers=first) as events:
                lines = events.iter_lines()
                wait_until(lambda: next(lines).startswith("event: "))
                desk.revoke("ann-1")
                watch.within("one of two tokens: seconds until its stream ends", STREAM_S,
                             lambda: next(lines, None) is None)  # fmt: skip
            watch.goes_on(place, before)
            watch.holds("the job goes on", watch.look(place)["state"] == "running")
            (mine,) = watch.computing()
            watch.client.headers.update(other)
            bobs, before = watch.running(job({**LONG, "seed": 1}))
            with watch.client.stream("GET", f"{place}/events", headers=second) as events:
                lines = events.iter_lines()
                wait_until(lambda: next(lines).startswith("event: "))
                desk.revoke("ann-2")
                watch.within("the last token: seconds until nothing computes the job", STOP_S,
                             lambda: not is_alive(mine))  # fmt: skip
                text = "".join(lines)
            watch.holds("its stream ends with the job", "event: failed" in text)
            watch.holds("the job says why", "was revoked" in text)
            now = watch.goes_on(bobs, before)
            watch.holds("another owner's job goes on", now["state"] == "running")
    return watch.checks


OUTAGES: Final[dict[str, tuple[str, Callable[[Path], list[Check]]]]] = {
    "scheduler": ("Dask's scheduler is killed", scheduler),
    "no-workers": ("Dask has no workers", no_workers),
    "other-ours": ("Dask's worker has another domino_tune", other_ours),
    "other-distributed": ("Dask's worker has another distributed", other_distributed),
    "postgres": ("PostgreSQL stops for 20 s", postgres),
    "postgres-of-two": ("PostgreSQL stops for 20 s, two replicas", postgres_of_two),
    "stop": ("A job is stopped or deleted", stopped),
    "stop-on-dask": ("A job on Dask is stopped or deleted", stopped_on_dask),
    "revoke": ("An owner's tokens are revoked", revoked),
}
"""What happens, by name: how the table calls it, and what does it."""
