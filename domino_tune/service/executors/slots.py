"""SlotExecutor: worker processes of this machine, each of which may die alone."""

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
from domino_tune.service.executors.errors import ExecutorLostError, WorkerDiedError
from simulator.errors import DominoTuneError

NICENESS: Final = 10
"""Workers stand back where the event loop wants the core."""
PATIENCE_S: Final = 5
STARTS: Final = 3
"""Workers that may end before they begin with a call: they were idle when something killed them."""
STALL_S: Final = 300.0
"""A worker that has a call and used no processor for so long hangs, or was stopped."""
LOOKS: Final = 60
"""How often it is looked at meanwhile."""
BEGUN: Final = "begun"
LOG: Final = logging.getLogger("domino_tune.service")
Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class SlotExecutor(Executor):
    """``slots`` processes, each behind a thread that hands it one call after the other.

    A process that dies breaks the call it was at, with WorkerDiedError, and is replaced; calls
    beside and behind it never notice. (ProcessPoolExecutor breaks them all.) One that stands still
    for ``stall_s`` while it has a call is killed. Where none can be started, calls end with
    ExecutorLostError. Processes end by themselves when their parent is gone.
    """

    def __init__(self, slots: int, *, niceness: int = NICENESS, stall_s: float = STALL_S) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._slots = [_Slot(self._calls, niceness) for _ in range(slots)]
        self._closed = False
        self._over = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(stall_s / LOOKS,), name="slots' watch", daemon=True
        )
        watch.start()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that are there now."""
        return [slot.worker.pid for slot in self._slots if slot.worker is not None]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call ``fn``, which a worker must be able to import, in the next slot that is free."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._calls.put((future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. With ``wait`` those accepted are done first; else workers are killed
        at once, since slices can be computed again."""
        self._closed = True
        if cancel_futures or not wait:
            self._drop_waiting()
        for _ in self._slots:
            self._calls.put(None)
        if not wait:
            for slot in self._slots:
                slot.kill()
        for slot in self._slots:
            slot.join(None if wait else PATIENCE_S)
        self._over.set()

    def _watch(self, beat_s: float) -> None:
        """End workers that stand still. Time is counted in beats, so that a pause of the whole
        program is one beat, however long it was."""
        while not self._over.wait(beat_s):
            for slot in self._slots:
                slot.look()

    def _drop_waiting(self) -> None:
        with suppress(Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None and call[0].cancel():
                    call[0].set_running_or_notify_cancel()  # wakes those who wait for it


class _Slot:
    """A thread and the worker process it has now."""

    def __init__(self, calls: SimpleQueue[Call | None], niceness: int) -> None:
        self._calls = calls
        self._niceness = niceness
        self._ended = threading.Event()
        self.worker: _Worker | None = None
        self._thread = threading.Thread(target=self._serve, name="slot", daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End the worker, and start no other."""
        self._ended.set()
        if self.worker is not None:
            self.worker.kill()

    def look(self) -> None:
        """Once a beat: kill the worker where it stood still for too many of them."""
        worker = self.worker
        if worker is not None:
            worker.look()

    def join(self, timeout_s: float | None) -> None:
        """Wait until the thread is through."""
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        self._start()
        while (call := self._calls.get()) is not None:
            future, function, args, kwargs = call
            if future.set_running_or_notify_cancel():
                self._answer(future, function, args, kwargs)
        if self.worker is not None:
            self.worker.close()

    def _answer(
        self,
        future: Future[Any],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Settle ``future``; a worker that died is replaced before the next call needs it."""
        try:
            self._begin((function, args, kwargs))
            assert self.worker is not None
            value = self.worker.answer()
        except WorkerDiedError as error:
            future.set_exception(error)
            self._replace()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(value)

    def _begin(self, call: tuple[Any, ...]) -> None:
        """Have a worker begin with ``call``; one that died before it could is replaced.

        Raises ExecutorLostError: a call that never began did not kill it.
        """
        for _ in range(STARTS):
            if self.worker is not None and self.worker.begin(call):
                return
            self._replace()
        raise ExecutorLostError("No worker process can be started; is memory short?")

    def _start(self) -> None:
        with suppress(OSError):
            if not self._ended.is_set():
                self.worker = _Worker(self._niceness)
                if self._ended.is_set():  # killed meanwhile
                    self.worker.kill()

    def _replace(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.close()
        self.worker = None
        self._start()


class _Worker:
    """One process, and the pipe to it."""

    def __init__(self, niceness: int) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve_calls, args=(theirs, niceness), name="slice worker", daemon=True
        )
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0
        self._has_call = False
        self._used_s = -1.0
        self._still = 0

    def begin(self, call: tuple[Any, ...]) -> bool:
        """Whether it is there and begins with ``call``."""
        self._has_call = True
        try:
            self._pipe.send(call)
            return bool(self._pipe.recv() == BEGUN)
        except (EOFError, OSError):
            return False

    def answer(self) -> Any:
        """The value of the call begun, or what it raises. Raises WorkerDiedError."""
        try:
            worked, value = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(PATIENCE_S)
            raise WorkerDiedError(
                f"The worker process died ({_how(self._process.exitcode)}) over this; does it need "
                "more memory than there is?"
            ) from None
        finally:
            self._has_call = False
        if worked:
            return value
        raise value

    def look(self) -> None:
        """Count beats in which it had a call and used no processor; at the last one, kill it: what
        waits for it, or for room in its pipe, then sees it dead."""
        used_s = self._processor_s() if self._has_call else -1.0
        self._still = self._still + 1 if 0 <= used_s == self._used_s else 0
        self._used_s = used_s
        if self._still >= LOOKS:
            LOG.warning("worker %d stood still over a call and was ended", self.pid)
            self.kill()

    def _processor_s(self) -> float:
        """Seconds of processor it has used; -1 where it is gone."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return -1.0
        return float(times.user + times.system)

    def kill(self) -> None:
        """End it at once."""
        with suppress(OSError, ValueError):
            self._process.kill()

    def close(self) -> None:
        """Let it end, and free what it held here."""
        self._pipe.close()
        with suppress(ValueError):  # closed already
            self._process.join(PATIENCE_S)
            self._process.kill()
            self._process.join()
            self._process.close()


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"


def serve_calls(pipe: Connection, niceness: int) -> None:
    """What a worker process does: answer calls until its parent has no more, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    os.nice(niceness)
    give_freed_memory_back()
    from domino_tune.service.work import import_ahead

    import_ahead()
    with suppress(EOFError, OSError):
        while True:
            function, args, kwargs = pipe.recv()
            pipe.send(BEGUN)
            pipe.send(_outcome(function, args, kwargs))


def _outcome(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, Any]:
    """(True, value) or (False, exception)."""
    try:
        return True, function(*args, **kwargs)
    except Exception as error:
        return False, _portable(error)


def _portable(error: Exception) -> Exception:
    """The error as another process can have it; a bug with the place where it happened."""
    if not isinstance(error, DominoTuneError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
