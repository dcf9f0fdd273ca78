"""Runner: claim jobs and run each on an executor, in a thread of its own, until it is closed.

A job whose process dies, or whose service dies, begins again by itself; after MOST_ATTEMPTS it
fails.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from domino_tune.base.errors import RunError, StorageError, UnavailableError, with_cause
from domino_tune.requests.problems import plain_problem
from domino_tune.service.executors import (
    ChildDiedError,
    EndedError,
    JobExecutor,
    Limits,
    NoWorkerError,
    Wanted,
)
from domino_tune.service.jobs import JobProgress, Point
from domino_tune.service.jobs.leases import Claimed, Leases, LostLeaseError
from domino_tune.service.jobs.retention import Retention
from domino_tune.service.work import JobStep, Outcome
from simulator.errors import DominoTuneError

POLL_S: Final = 1.0
"""Time between two looks for jobs, and at what is wanted of those that run."""
MOST_ATTEMPTS: Final = 3
"""Attempts that died with their process, or with the service, after which a job fails."""
BACK_OFF_S: Final = (0.1, 0.3, 1.0, 3.0)
"""Pauses between tries while the database or the executor is away; the last one repeats."""
WRITE_S: Final = 120.0
"""A result that cannot be stored for so long, while the database answers, fails its job."""
LOG: Final = logging.getLogger("domino_tune.service")
Value = TypeVar("Value")


@dataclass(eq=False)
class _Held:
    """A claimed job, what is ``wanted`` of it, whether it is ``lost``, and its thread. ``points``:
    those that wait to be written."""

    claimed: Claimed
    wanted: Wanted = "go on"
    lost: bool = False
    began_s: float = field(default_factory=time.monotonic)
    points: list[Point] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def id(self) -> str:
        """Return the job's id."""
        return self.claimed.job.id


class Runner:
    """Runs jobs of ``leases``, ``slots`` at once; ``retention`` collects from time to time. Call
    ``start``, then ``wake`` whenever there may be work, and ``close`` at the end."""

    def __init__(
        self,
        leases: Leases,
        executor: JobExecutor,
        slots: int,
        *,
        limits: Limits | None = None,
        retention: Retention | None = None,
    ) -> None:
        self._leases = leases
        self._executor = executor
        self._slots = slots
        self._limits = limits or Limits()
        self._retention = retention
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._look = threading.Event()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=target.__name__, daemon=True)
            for target in (self._claim_jobs, self._watch, self._collect)
        ]

    @property
    def running(self) -> int:
        """Return the number of jobs that run here."""
        return len(self._held)

    @property
    def lacking(self) -> str:
        """Return what is missing to run jobs; empty: nothing."""
        return self._executor.lacking

    @property
    def workers(self) -> int:
        """Return the number of workers that jobs can run on."""
        return self._executor.workers

    def start(self) -> None:
        """Start to claim jobs."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def look(self) -> None:
        """Learn now what is wanted of the jobs that run."""
        self._look.set()

    def close(self, timeout_s: float = 10.0) -> None:
        """Claim no more jobs, end those that run, and give them back. Others claim what could not
        be given back in time when its lease expires."""
        end_s = time.monotonic() + timeout_s
        self._stopping.set()
        self._wake.set()
        self._look.set()
        jobs = [one.thread for one in self._all() if one.thread]
        for thread in (*self._threads, *jobs):
            thread.join(max(0.0, end_s - time.monotonic()))
        self._executor.close()

    def _all(self) -> list[_Held]:
        with self._lock:
            return list(self._held.values())

    # Threads of the runner -----------------------------------------------------------------------

    def _claim_jobs(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            claimed = self._claim() if len(self._held) < self._slots else None
            if claimed is None:
                self._wake.wait(POLL_S)
                continue
            held = _Held(claimed)
            with self._lock:
                self._held[held.id] = held
            LOG.info("job %s: claimed, attempt %d", held.id, claimed.job.attempts)
            held.thread = threading.Thread(target=self._work, args=(held,), daemon=True)
            held.thread.start()

    def _claim(self) -> Claimed | None:
        try:
            return self._leases.claim()
        except Exception as error:
            _log("cannot claim", error)
            return None

    def _watch(self) -> None:
        """Learn what is wanted of the jobs, renew their leases, and look at the executor."""
        renewed_s, lacking = time.monotonic(), ""
        while not self._stopping.is_set() or self._held:
            self._look.wait(POLL_S / 10 if self._stopping.is_set() else POLL_S)
            self._look.clear()
            held = self._all()
            renews = time.monotonic() - renewed_s > self._leases.lease_s / 3
            try:
                if held:
                    self._hear(held)
                for one in held if renews else ():
                    with suppress(LostLeaseError):  # ``_hear`` finds out
                        self._leases.renew(one.claimed)
                self._executor.check()
            except Exception as error:
                _log("cannot look after jobs", error)
            renewed_s = time.monotonic() if renews else renewed_s
            if self._executor.lacking != lacking:
                lacking = self._executor.lacking
                LOG.warning("%s", lacking or "The executor can run jobs again.")

    def _hear(self, held: list[_Held]) -> None:
        asked = self._leases.asked([one.claimed for one in held])
        for one in held:
            if one.id not in asked:
                one.lost = True
            elif asked[one.id]:
                one.wanted = "stop"

    def _collect(self) -> None:
        """Delete what exceeds retention, whenever that is due and no other replica does it."""
        while self._retention is not None:
            try:
                gone = self._retention.collect_if_due()
                if gone is not None and (gone.jobs or gone.bodies):
                    LOG.info("deleted %d old jobs and %d bodies", gone.jobs, gone.bodies)
            except Exception as error:
                _log("cannot collect", error)
            if self._stopping.wait(self._retention.period_s):
                return

    # The thread of a job -------------------------------------------------------------------------

    def _work(self, held: _Held) -> None:
        """Run a job until it has ended, is given back or is lost."""
        try:
            self._finish(held)
        except LostLeaseError:
            LOG.info("job %s: deleted, or another's by now", held.id)
        except Exception as error:
            _log(f"job {held.id}", error)
        finally:
            with self._lock:
                del self._held[held.id]
            self._wake.set()

    def _finish(self, held: _Held) -> None:
        """Compute the job, and write its result or its error."""
        claimed = held.claimed
        try:
            if claimed.job.attempts > MOST_ATTEMPTS:
                raise _died("the service that ran it died")
            outcome = self._compute(held)
            progress, _ = _progress(held, outcome.last)
            self._write(
                held, self._leases.progress, claimed, progress, outcome.last.best, last=True
            )
            self._write(
                held, self._leases.finish, claimed, outcome.result, outcome.files,
                outcome.stopped_by, last=True,
            )  # fmt: skip
            LOG.info("job %s: done%s", held.id, ", stopped early" if outcome.stopped_by else "")
        except LostLeaseError:
            raise
        except EndedError:
            if not held.lost:
                self._leases.release(claimed)
                LOG.info("job %s: given back", held.id)
        except ChildDiedError as error:
            LOG.warning("job %s: attempt %d: %s", held.id, claimed.job.attempts, error)
            if claimed.job.attempts < MOST_ATTEMPTS:
                self._write(held, lambda: self._leases.release(claimed, died=True))
            else:
                self._fail(held, _died(str(error)))
        except Exception as error:
            self._fail(held, error)

    def _fail(self, held: _Held, error: Exception) -> None:
        if not isinstance(error, DominoTuneError):
            LOG.error("job %s: a bug", held.id, exc_info=error)
        LOG.info("job %s: failed: %s", held.id, error)
        self._write(held, self._leases.fail, held.claimed, plain_problem(error))

    def _compute(self, held: _Held) -> Outcome:
        """Run the job on the executor, as soon as it has a worker."""
        tries = 0
        while True:
            held.began_s = time.monotonic()
            try:
                return self._executor.run(
                    held.claimed.task, self._limits, lambda step: self._tell(held, step),
                    lambda: self._wanted(held),
                )  # fmt: skip
            except NoWorkerError as error:
                if self._wanted(held) == "end":
                    raise EndedError from None
                if not tries:
                    LOG.warning("job %s waits: %s", held.id, error)
                self._tell(held, JobStep(text=f"waits: {error}"))
            self._pause(tries)
            tries += 1

    def _wanted(self, held: _Held) -> Wanted:
        return "end" if held.lost or self._stopping.is_set() else held.wanted

    def _tell(self, held: _Held, step: JobStep) -> None:
        """Write a step. What the database does not take now comes with the next one. Raise
        LostLeaseError."""
        held.points += [Point(index=index, body=body) for index, body in step.points]
        progress, ahead = _progress(held, step)
        try:
            if held.points:
                self._leases.add_points(held.claimed, held.points)
                held.points.clear()
            self._leases.progress(held.claimed, progress, step.best if ahead else None)
        except LostLeaseError:
            raise
        except DominoTuneError as error:
            _log(f"job {held.id}: cannot write its progress", error)

    def _write(
        self, held: _Held, function: Callable[..., Value], *args: object, last: bool = False
    ) -> Value:
        """Call ``function`` until the database takes it. Raise what waiting does not resolve:
        LostLeaseError, ConflictError, and where it is the ``last`` word StorageError after WRITE_S.
        """
        end_s, tries = time.monotonic() + WRITE_S, 0
        while True:
            try:
                return function(*args)
            except (StorageError, UnavailableError) as error:
                _log(f"job {held.id}: cannot write", error)
                if last and isinstance(error, StorageError) and time.monotonic() > end_s:
                    raise
                if self._wanted(held) == "end":
                    raise EndedError from None
            self._pause(tries)
            tries += 1

    def _pause(self, tries: int) -> None:
        self._stopping.wait(BACK_OFF_S[min(tries, len(BACK_OFF_S) - 1)])


def _progress(held: _Held, step: JobStep) -> tuple[JobProgress, bool]:
    """Return the progress to show, and whether it is as far as that of any attempt before: what was
    shown does not fall when a job begins again."""
    made = JobProgress(
        done=step.done, total=step.total, text=step.text, left=step.left,
        computed_s=time.monotonic() - held.began_s,
    )  # fmt: skip
    before, attempts = held.claimed.job.progress, held.claimed.job.attempts
    if attempts > 1:
        made = replace(made, text=f"attempt {attempts}: {step.text}")
    if step.done >= before.done:
        return made, True
    return replace(before, text=made.text, computed_s=made.computed_s), False


def _died(how: str) -> RunError:
    return RunError(
        f"{MOST_ATTEMPTS} attempts ended before this did; the last: {how.rstrip('.')}. Does it "
        "need more memory than there is? Ask for less, or submit it again."
    )


def _log(what: str, error: Exception) -> None:
    if isinstance(error, DominoTuneError):
        LOG.warning("%s: %s", what, with_cause(error))
    else:
        LOG.error("%s", what, exc_info=error)
