"""DaskExecutor: a task of a Dask cluster, ``dask://host:port``, for each job.

The task starts the same child process on its worker as the local executor does here. Its steps
come back as events of the scheduler, and what is wanted of it goes there as a variable: where that
is gone, so is whoever wanted the job.

Messages to and from the scheduler are pickles, so that cluster and service must trust each other:
let nobody else reach the scheduler's port, and use TLS if the network is shared
(https://distributed.dask.org/en/stable/tls.html; set in Dask's own configuration).
"""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from contextlib import suppress
from importlib import metadata
from queue import Empty, SimpleQueue
from typing import Any, Final

from domino_tune.base.origin import VERSION
from domino_tune.service.executors import (
    Ask,
    ChildDiedError,
    Compute,
    EndedError,
    Limits,
    NoWorkerError,
    Tell,
    Wanted,
)
from domino_tune.service.executors.child import run_in_child
from domino_tune.service.work import JobStep, Outcome
from domino_tune.service.work.kinds import run_job
from simulator.errors import InputError

CONNECT_S: Final = 5
CLOSE_S: Final = 1
LOOK_S: Final = 0.25
"""Time between two looks at what is wanted, here and on the worker."""
CHECK_S: Final = 5.0
"""Time between two looks at the workers."""
GONE_S: Final = 5
"""A variable that does not answer for so long is gone."""


class DaskExecutor:
    """Runs jobs through a ``distributed.Client``; replaces one that lost its scheduler. Raise
    InputError if no scheduler answers at ``place``."""

    def __init__(self, place: str, function: Compute = run_job) -> None:
        try:
            import distributed
        except ModuleNotFoundError:
            raise InputError(
                "A Dask cluster needs distributed; install it: pip install 'domino_tune[dask]'."
            ) from None
        self._distributed: Any = distributed
        self._place = place
        self._function = function
        self._lock = threading.Lock()
        self._client: Any = None
        self._closed = False
        self._known: dict[str, str] = {}
        self._fitting: tuple[str, ...] = ()
        self._there: frozenset[str] = frozenset()
        self._checked_s = -CHECK_S
        self.lacking = ""
        try:
            self._open()
        except (NoWorkerError, ValueError):
            raise InputError(
                f"No Dask scheduler answers at {place!r}; start one (`dask scheduler`), or give "
                "another --executor."
            ) from None

    @property
    def workers(self) -> int:
        """Return the number of workers that jobs can run on."""
        return len(self._fitting)

    def check(self) -> None:
        """Look at the cluster, if that is due, and note what it lacks."""
        with suppress(NoWorkerError):
            self._workers()

    def run(self, task: bytes, limits: Limits, tell: Tell, wanted: Ask) -> Outcome:
        """See JobExecutor."""
        client, fitting = self._workers(now=True)
        name = f"domino_tune-{uuid.uuid4().hex}"
        variable = self._distributed.Variable(name, client=client)
        steps: SimpleQueue[JobStep] = SimpleQueue()
        try:
            variable.set("go on")
            client.subscribe_topic(name, lambda event: steps.put(pickle.loads(event[1])))
            call = client.submit(
                compute, self._function, task, limits, name,
                key=name, pure=False, workers=list(fitting), allow_other_workers=False,
            )  # fmt: skip
        except Exception as error:
            raise self._lost() from error
        last: Wanted = "go on"
        begun = False
        try:
            while not call.done():
                time.sleep(LOOK_S / 2)
                begun |= _drain(steps, tell)
                asked = "end" if self._closed else wanted()
                if asked == "end":
                    raise EndedError
                if client.status != "running":
                    raise self._lost()
                if not self._there.intersection(fitting):
                    raise _gone(begun)
                if asked != last:
                    last = asked
                    variable.set(asked)
            _drain(steps, tell)
            return _result(call)
        finally:
            with suppress(Exception):
                if not call.done():  # its worker would wait for a variable that is not there
                    variable.set("end")
                    call.exception(timeout=CLOSE_S)
            with suppress(Exception):
                variable.delete()
                client.unsubscribe_topic(name)
                call.release()

    def close(self) -> None:
        """End the jobs that run, and close the connection."""
        self._closed = True
        with self._lock:
            self._drop()

    def _workers(self, now: bool = False) -> tuple[Any, tuple[str, ...]]:
        """Return a connected client and the workers that fit; look for them if that is due, or
        ``now``. Raise NoWorkerError."""
        try:
            client = self._open()
            with self._lock:
                if now or time.monotonic() - self._checked_s > CHECK_S or not self._fitting:
                    self._fitting = self._look(client)
                    self._checked_s = time.monotonic()
        except NoWorkerError as error:
            self.lacking, self._fitting = str(error), ()
            raise
        self.lacking = ""
        return client, self._fitting

    def _look(self, client: Any) -> tuple[str, ...]:
        """Return the workers of our version. Raise NoWorkerError where none is there."""
        try:
            there = client.scheduler_info(n_workers=-1)["workers"]
            new = [address for address in there if address not in self._known]
            if new:
                self._known |= {
                    address: found if isinstance(found, str) else type(found).__name__
                    for address, found in client.run(
                        versions, workers=new, on_error="return"
                    ).items()
                }
        except Exception as error:
            raise self._lost() from error
        if client.status != "running":  # what it knows of workers is old then
            raise self._lost()
        self._there = frozenset(there)
        self._known = {one: found for one, found in self._known.items() if one in there}
        ours = versions()
        fitting = tuple(one for one, found in self._known.items() if found == ours)
        if fitting:
            return fitting
        if not there:
            raise NoWorkerError(
                f"The Dask cluster at {self._place} has no workers; start one: dask worker "
                f"{self._place}"
            )
        name, found = next(iter(self._known.items()))
        raise NoWorkerError(
            f"No worker of the Dask cluster at {self._place} has {ours}: {name} has {found}; "
            "install the same there."
        )

    def _open(self) -> Any:
        """Return a connected client. Raise NoWorkerError."""
        with self._lock:
            # A client that reconnects by itself keeps calls for later, and may lose them.
            if self._client is None or self._client.status != "running":
                self._drop()
                if self._closed:
                    raise NoWorkerError("The service stops.")
                try:
                    # Without a scheme Dask uses the configured one, tcp or tls.
                    self._client = self._distributed.Client(
                        self._place, timeout=CONNECT_S, set_as_default=False
                    )
                except OSError as error:  # TimeoutError is one
                    raise self._lost() from error
            return self._client

    def _drop(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close(timeout=CLOSE_S)
            self._client = None

    def _lost(self) -> NoWorkerError:
        return NoWorkerError(f"No Dask scheduler answers at {self._place}; is it running?")


def versions() -> str:
    """Return what must be the same here and on a worker."""
    return f"domino_tune {VERSION}, distributed {metadata.version('distributed')}"


def compute(function: Compute, task: bytes, limits: Limits, name: str) -> Outcome:
    """Compute a job on a worker, in a child process; ``name``: of its variable and events."""
    import distributed

    connect: Any = distributed
    worker, client = connect.get_worker(), connect.get_client()
    variable = connect.Variable(name, client=client)
    last: list[Wanted] = ["go on"]
    looked_s = 0.0

    def wanted() -> Wanted:
        nonlocal looked_s
        if time.monotonic() - looked_s > LOOK_S:
            looked_s = time.monotonic()
            try:
                last[0] = variable.get(timeout=GONE_S)
            except Exception:  # it is deleted, or the scheduler is gone
                last[0] = "end"
        return last[0]

    try:
        return run_in_child(
            function, task, limits, lambda step: worker.log_event(name, pickle.dumps(step)), wanted
        )
    except EndedError:
        raise NoWorkerError("The Dask cluster lost what was wanted of this.") from None


def _gone(begun: bool) -> ChildDiedError | NoWorkerError:
    """Return the error of a call that waits for workers which all died: Dask keeps it for them, but
    they come back at other addresses."""
    if begun:
        return ChildDiedError("Dask's workers died over this.")
    return NoWorkerError("The Dask workers that this was for are gone; others will take it.")


def _drain(steps: SimpleQueue[JobStep], tell: Tell) -> bool:
    """Tell the steps that have come. Return whether there were any."""
    told = False
    with suppress(Empty):
        while True:
            tell(steps.get_nowait())
            told = True
    return told


def _result(call: Any) -> Outcome:
    """Return what a call of Dask returned, or raise our own errors."""
    try:
        outcome: Outcome = call.result(timeout=CONNECT_S)
    except Exception as error:
        name = type(error).__name__
        if name == "KilledWorker":
            raise ChildDiedError("Dask's workers died over this.") from None
        if name in ("CommClosedError", "TimeoutError", "CancelledError", "FutureCancelledError"):
            raise NoWorkerError("The Dask cluster dropped this; it may be back soon.") from None
        raise
    return outcome
