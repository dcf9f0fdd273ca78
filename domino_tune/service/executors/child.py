"""A child process that computes: limited in memory by the operating system, ended by its parent, or
by the system where its parent stands still.

It is started with ``python -m``, not by multiprocessing: a worker of Dask may have no children of
that kind. It ends when its parent is gone.
"""

from __future__ import annotations

import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from domino_tune.base.memory import give_freed_memory_back
from domino_tune.service.executors import (
    Ask,
    ChildDiedError,
    Compute,
    EndedError,
    Limits,
    OverLimitError,
    Tell,
)
from domino_tune.service.work import JobStep, Outcome, Reporter, StopReason
from simulator.errors import DominoTuneError

NICENESS: Final = 10
"""Of jobs: they yield the core to the event loop, and to what somebody waits for."""
LOOK_S: Final = 0.25
"""Time between two looks at what is wanted of a job."""
PARENT_S: Final = 1.0
EXIT_S: Final = 5.0
MIB: Final = 1 << 20


class ChildCall(NamedTuple):
    """A function for the child to call; where it ``reports``, with a reporter as last argument."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    reports: bool = False


class CallEnd(NamedTuple):
    """The end of a call: what it returned or raised."""

    value: Any
    error: Exception | None = None


class Child:
    """A process that answers one call at a time, on all cores for ``seconds`` at most (0: for as
    long as it takes)."""

    def __init__(self, memory_bytes: int, niceness: int = NICENESS, seconds: float = 0) -> None:
        self._pipe, theirs = Pipe()
        self.memory_bytes = memory_bytes
        with theirs:
            number = theirs.fileno()
            cpu_s = math.ceil(seconds) * (os.cpu_count() or 1)
            words = map(str, (number, os.getpid(), memory_bytes, niceness, cpu_s))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "domino_tune.service.executors.child", *words],
                pass_fds=[number], stdin=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    def send(self, message: ChildCall | StopReason) -> None:
        """Send a call, or why the running one should end with the best so far. Raise
        ChildDiedError, OverLimitError."""
        try:
            self._pipe.send(message)
        except OSError:
            raise self._died() from None

    def receive(self, seconds: float) -> JobStep | CallEnd | None:
        """Return the next step, or the answer; None if none comes within that time. Raise
        ChildDiedError, OverLimitError."""
        try:
            if not self._pipe.poll(max(0.0, seconds)):
                return None
            found: JobStep | CallEnd = self._pipe.recv()
        except (EOFError, OSError):
            raise self._died() from None
        return found

    def _died(self) -> ChildDiedError | OverLimitError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        code = self._process.returncode
        if code == -signal.SIGXCPU:
            return OverLimitError("This took more processor time than it may have; ask for less.")
        cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit {code}"
        return ChildDiedError(f"The process that computed this died ({cause}).")

    def kill(self) -> None:
        """End the process, and free what it had."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()


def run_in_child(
    function: Compute, task: bytes, limits: Limits, tell: Tell, wanted: Ask
) -> Outcome:
    """Compute a job with ``function``, in a process of its own. See JobExecutor.run."""
    child = Child(limits.memory_bytes, seconds=limits.seconds + limits.grace_s)
    end_s, stopped = time.monotonic() + limits.seconds, False
    try:
        child.send(ChildCall(function, (task,), reports=True))
        while True:
            message = child.receive(LOOK_S)
            if isinstance(message, JobStep):
                tell(message)
            elif message is not None:
                if message.error is not None:
                    raise message.error
                outcome: Outcome = message.value
                return outcome
            asked, now_s = wanted(), time.monotonic()
            if asked == "end":
                raise EndedError
            if not stopped and (asked == "stop" or now_s > end_s):
                stopped = True
                child.send("user" if asked == "stop" else "time")
            if now_s > end_s + limits.grace_s:
                raise OverLimitError(
                    f"This took longer than the {limits.seconds:,.0f} s that a job may compute, "
                    "and found nothing by then; ask for less."
                )
    finally:
        child.kill()


# In the child --------------------------------------------------------------------------------


def serve(pipe: Connection, parent: int, memory_bytes: int, niceness: int, cpu_s: int) -> None:
    """Answer calls until the parent has no more, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    os.nice(niceness)
    give_freed_memory_back()
    # What the program maps for itself counts too, so this is no exact limit of what a job needs.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if cpu_s:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            call = pipe.recv()
            if isinstance(call, ChildCall):  # else a reason to stop what has just ended
                pipe.send(_answer(pipe, call, memory_bytes))


def _answer(pipe: Connection, call: ChildCall, memory_bytes: int) -> CallEnd:
    reporter = Reporter(pipe.send, _Heard(pipe))
    try:
        more = (reporter,) if call.reports else ()
        return CallEnd(call.function(*call.arguments, *more))
    except (BrokenPipeError, EOFError):
        raise
    except MemoryError:
        return CallEnd(
            None,
            OverLimitError(
                f"This needs more than the {memory_bytes // MIB:,} MiB of memory that it may have; "
                "ask for less."
            ),
        )
    except Exception as error:
        return CallEnd(None, _portable(error))


class _Heard:
    """The reason to stop that the parent has sent, if any."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._reason: StopReason | None = None

    def __call__(self) -> StopReason | None:
        if self._reason is None and self._pipe.poll():
            self._reason = self._pipe.recv()
        return self._reason


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, whatever it computes."""
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """Return the error in a form that another process can unpickle; add a bug's traceback as a
    note."""
    if not isinstance(error, DominoTuneError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    # Pickles name classes by their module, which is not __main__.
    from domino_tune.service.executors import child

    _number, *_numbers = map(int, sys.argv[1:])
    child.serve(Connection(_number), *_numbers)
