"""The executors of jobs by scheme, and a pool of processes for answers that somebody waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from domino_tune.service.executors import (
    Ask,
    Compute,
    JobExecutor,
    Limits,
    NoWorkerError,
    OverLimitError,
    Tell,
)
from domino_tune.service.executors.child import CallEnd, Child, ChildCall, run_in_child
from domino_tune.service.work import Outcome
from domino_tune.service.work.kinds import run_job

# LocalExecutor ------------------------------------------------------------------------------------
# A process of this machine for each job.


class LocalExecutor:
    """Runs jobs on this machine. ``function`` computes them."""

    lacking = ""

    def __init__(self, slots: int, function: Compute = run_job) -> None:
        self.workers = slots
        self._function = function
        self._closed = False

    def run(self, task: bytes, limits: Limits, tell: Tell, wanted: Ask) -> Outcome:
        """See JobExecutor."""
        try:
            return run_in_child(
                self._function, task, limits, tell, lambda: "end" if self._closed else wanted()
            )
        except OSError as error:
            raise NoWorkerError(
                f"No process can be started: {error.strerror}; is memory short?"
            ) from error

    def check(self) -> None:
        """Nothing is missing on this machine."""

    def close(self) -> None:
        """End the jobs that run."""
        self._closed = True


def open_executor(address: str, slots: int) -> JobExecutor:
    """Return the executor at ``address``: ``local``, or ``dask://host:port``; ``slots``: jobs that
    run at once here.

    This may take some seconds. Raise InputError where Dask is not installed, or where no scheduler
    answers.
    """
    if address == "local":
        return LocalExecutor(slots)
    from domino_tune.service.executors.dask import DaskExecutor

    return DaskExecutor(address.removeprefix("dask://"))


# A pool of child processes for answers that somebody waits for ------------------------------------
# Each answers one call at a time, within its seconds.

NICENESS: Final = 5
"""After the event loop, and before jobs."""
LOOK_S: Final = 0.5


class ProcessPool:
    """``slots`` processes, each started with the first call that needs it and again after a death
    or a call that took too long."""

    def __init__(self, slots: int, memory_bytes: int) -> None:
        self.slots = slots
        self._memory_bytes = memory_bytes
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="pool")
        self._idle: list[Child] = []
        self._lock = threading.Lock()
        self._closed = False

    def warm(self) -> None:
        """Start a process, so that the first call need not wait for that."""
        self._give_back(Child(self._memory_bytes, NICENESS))

    def submit(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Future[Any]:
        """Call a function that a process can import.

        The future raises what it raises, OverLimitError after ``seconds`` of running, and
        ChildDiedError.
        """
        return self._threads.submit(self._call, ChildCall(function, arguments), seconds)

    def _call(self, call: ChildCall, seconds: float) -> Any:
        child = self._take()
        try:
            child.send(call)
            answer = self._wait(child, time.monotonic() + seconds)
        except BaseException:
            child.kill()
            raise
        if answer is None:
            child.kill()
            raise OverLimitError(f"This takes longer than {seconds:g} s; ask for less.")
        if isinstance(answer.error, OverLimitError):
            child.kill()  # its memory is in pieces
        else:
            self._give_back(child)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _wait(self, child: Child, end_s: float) -> CallEnd | None:
        while (left_s := end_s - time.monotonic()) > 0:
            if self._closed:
                raise NoWorkerError("The service stops.")
            message = child.receive(min(left_s, LOOK_S))
            if isinstance(message, CallEnd):
                return message
        return None

    def _take(self) -> Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Child(self._memory_bytes, NICENESS)

    def _give_back(self, child: Child) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        child.kill()

    def close(self) -> None:
        """End the processes, and what they compute."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
