"""SlotExecutor: worker processes on this machine; each may die without affecting the others."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, Final

import psutil

from domino_tune.base.freed_memory import give_freed_memory_back
from domino_tune.base.garbage import leave_out_what_is_there
from domino_tune.service.executors.errors import ExecutorLostError, WorkerDiedError
from simulator.errors import DominoTuneError

NICENESS: Final = 10
"""Niceness of workers, which yield the core to the event loop when it needs it."""
EXIT_S: Final = 5
STARTS: Final = 3
"""Attempts to start a call: idle workers may have been killed."""
STALL_S: Final = 300.0
"""A worker that has a call and uses no processor time for this long hangs, or was stopped."""
STALL_CHECKS: Final = 60
"""Checks of a worker within ``STALL_S``."""
BEGUN: Final = "begun"
LOG: Final = logging.getLogger("domino_tune.service")
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
Calls = SimpleQueue[tuple[Future[Any], Call] | None]


class SlotExecutor(Executor):
    """Runs calls in ``slots`` worker processes, one call at a time in each.

    A worker that dies fails only the call that it runs, with WorkerDiedError, and is replaced
    (ProcessPoolExecutor fails all calls). A worker that has a call and uses no processor time for
    ``stall_s`` seconds is killed. If no worker can be started, calls fail with ExecutorLostError.
    Workers exit when their parent is gone.
    """

    def __init__(self, slots: int, *, niceness: int = NICENESS, stall_s: float = STALL_S) -> None:
        self._calls: Calls = SimpleQueue()
        self._cancelled = threading.Event()
        self._slots = [_Slot(self._calls, self._cancelled, niceness) for _ in range(slots)]
        self._closed = False
        self._ended = threading.Event()
        period_s = stall_s / STALL_CHECKS
        threading.Thread(target=self._watch, args=(period_s,), name="watch", daemon=True).start()

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the present workers."""
        workers = [slot.worker for slot in self._slots]
        return [worker.pid for worker in workers if worker is not None]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call ``fn``, which a worker must be able to import, in the next free slot."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._calls.put((future, (fn, args, kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. With ``wait``, finish the accepted ones first; otherwise kill the
        workers at once, since a quantum can be computed again.
        """
        self._closed = True
        if cancel_futures or not wait:
            self._cancelled.set()
            self._cancel_waiting()
        for slot in self._slots:
            self._calls.put(None)
            if not wait and (worker := slot.worker) is not None:
                worker.kill()
        for slot in self._slots:
            slot.join(None if wait else EXIT_S)
        self._ended.set()

    def _cancel_waiting(self) -> None:
        """Cancel the calls that no slot has taken, now rather than when a slot reaches them."""
        with suppress(Empty):
            while (item := self._calls.get_nowait()) is not None:
                future, _ = item
                future.cancel()
                future.set_running_or_notify_cancel()

    def _watch(self, period_s: float) -> None:
        """Kill workers that stall. Count checks, not seconds: a pause of the whole program counts
        as one check, however long it was.
        """
        while not self._ended.wait(period_s):
            for slot in self._slots:
                if (worker := slot.worker) is not None:
                    worker.check_stall()


class _Slot(threading.Thread):
    """A thread that hands calls to one worker, and replaces the worker when it dies."""

    def __init__(self, calls: Calls, cancelled: threading.Event, niceness: int) -> None:
        super().__init__(name="slot", daemon=True)
        self._calls = calls
        self._cancelled = cancelled
        self._niceness = niceness
        self.worker: _Worker | None = None
        self.start()

    def run(self) -> None:
        """Answer calls until None comes."""
        self._start_worker()
        while (item := self._calls.get()) is not None:
            future, call = item
            if self._cancelled.is_set():
                future.cancel()
            # If the future is cancelled, this wakes up those who wait for it.
            if future.set_running_or_notify_cancel():
                self._answer(future, call)
        if self.worker is not None:
            self.worker.close()

    def _answer(self, future: Future[Any], call: Call) -> None:
        """Settle ``future``; if the worker died, replace it before the next call needs it."""
        try:
            future.set_result(self._begin(call).answer())
        except WorkerDiedError as error:
            future.set_exception(error)
            self._start_worker()
        except BaseException as error:
            future.set_exception(error)

    def _begin(self, call: Call) -> _Worker:
        """Return a worker that has started ``call``, after replacing dead ones.

        Raise ExecutorLostError: a call that has not started did not kill them.
        """
        for _ in range(STARTS):
            if self.worker is not None and self.worker.begin(call):
                return self.worker
            self._start_worker()
        raise ExecutorLostError("No worker process can be started; is memory short?")

    def _start_worker(self) -> None:
        """Replace the worker, unless calls are cancelled."""
        if self.worker is not None:
            self.worker.kill()
            self.worker.close()
            self.worker = None
        with suppress(OSError):
            if not self._cancelled.is_set():
                self.worker = _Worker(self._niceness)
                if self._cancelled.is_set():  # ``shutdown`` did not see this worker
                    self.worker.kill()


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, niceness: int) -> None:
        context = get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(
            target=serve_calls, args=(child_pipe, niceness), name="worker", daemon=True
        )
        self._process.start()
        child_pipe.close()
        self.pid = self._process.pid or 0
        self._has_call = False
        self._used_s = -1.0
        self._stalled_checks = 0

    def begin(self, call: Call) -> bool:
        """Send ``call`` to the process; return whether it is alive and started the call."""
        self._has_call = True
        try:
            self._pipe.send(call)
            return bool(self._pipe.recv() == BEGUN)
        except (EOFError, OSError):
            return False

    def answer(self) -> Any:
        """Return the value of the started call, or raise its error. Raise WorkerDiedError if the
        process died.
        """
        try:
            succeeded, value = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(EXIT_S)
            code = self._process.exitcode
            cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit {code}"
            raise WorkerDiedError(
                f"The worker process died ({cause}) over this; does it need more memory than there "
                "is?"
            ) from None
        finally:
            self._has_call = False
        if succeeded:
            return value
        raise value

    def check_stall(self) -> None:
        """Kill the process after ``STALL_CHECKS`` checks in a row at which it had a call and had
        used no more processor time. Callers blocked on its pipe then get an error.
        """
        used_s = self._processor_s() if self._has_call else -1.0
        self._stalled_checks = self._stalled_checks + 1 if 0 <= used_s == self._used_s else 0
        self._used_s = used_s
        if self._stalled_checks >= STALL_CHECKS:
            LOG.warning("worker %d stood still over a call and was ended", self.pid)
            self.kill()

    def _processor_s(self) -> float:
        """Return the processor time used, in seconds; -1 if the process is gone."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return -1.0
        return float(times.user + times.system)

    def kill(self) -> None:
        """Kill the process, from any thread."""
        with suppress(OSError, ValueError):  # ValueError: already closed
            self._process.kill()

    def close(self) -> None:
        """Let the process exit, and free the pipe and the process."""
        self._pipe.close()
        self._process.join(EXIT_S)
        self._process.kill()
        self._process.join()
        self._process.close()


def serve_calls(pipe: Connection, niceness: int) -> None:
    """Answer calls in a worker process until the parent has no more, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    os.nice(niceness)
    give_freed_memory_back()
    from domino_tune.service.tasks.work import import_ahead

    import_ahead()
    leave_out_what_is_there()
    with suppress(EOFError, OSError):
        while True:
            function, args, kwargs = pipe.recv()
            pipe.send(BEGUN)
            try:
                outcome = True, function(*args, **kwargs)
            except Exception as error:
                outcome = False, _portable(error)
            pipe.send(outcome)


def _portable(error: Exception) -> Exception:
    """Return the error in a form that another process can unpickle; add a bug's traceback
    as a note.
    """
    if not isinstance(error, DominoTuneError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
