"""SlotExecutor: worker processes of this machine, each of which may die alone."""

from __future__ import annotations

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

from domino_tune.freed_memory import give_freed_memory_back
from domino_tune.jobs.executors import ExecutorLostError, WorkerDiedError
from simulator.errors import DominoTuneError

NICENESS: Final = 10
"""Workers stand back where the event loop wants the core."""
PATIENCE_S: Final = 5
STARTS: Final = 3
"""Workers that may end before they begin with a call: they were idle when something killed them."""
BEGIN_S: Final = 60
"""A worker has started within."""
ANSWER_S: Final = 300.0
"""A worker that answers nothing for so long hangs, or was stopped: slices take seconds."""
BEGUN: Final = "begun"
Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class SlotExecutor(Executor):
    """``slots`` processes, each behind a thread that hands it one call after the other.

    A process that dies breaks the call it was at, with WorkerDiedError, and is replaced; calls
    beside and behind it never notice. (ProcessPoolExecutor breaks them all.) One that gives no
    answer for ``answer_s`` is killed. Where none can be started, calls end with ExecutorLostError.
    Processes end by themselves when their parent is gone.
    """

    def __init__(self, slots: int, *, niceness: int = NICENESS, answer_s: float = ANSWER_S) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._slots = [_Slot(self._calls, niceness, answer_s) for _ in range(slots)]
        self._closed = False

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

    def _drop_waiting(self) -> None:
        with suppress(Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None and call[0].cancel():
                    call[0].set_running_or_notify_cancel()  # wakes those who wait for it


class _Slot:
    """A thread and the worker process it has now."""

    def __init__(
        self, calls: SimpleQueue[Call | None], niceness: int, answer_s: float
    ) -> None:  # fmt: skip
        self._calls = calls
        self._niceness = niceness
        self._answer_s = answer_s
        self._ended = threading.Event()
        self.worker: _Worker | None = None
        self._thread = threading.Thread(target=self._serve, name="slot", daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End the worker, and start no other."""
        self._ended.set()
        if self.worker is not None:
            self.worker.kill()

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
                self.worker = _Worker(self._niceness, self._answer_s)
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

    def __init__(self, niceness: int, answer_s: float) -> None:
        self._answer_s = answer_s
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve_calls, args=(theirs, niceness), name="slice worker", daemon=True
        )
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0

    def begin(self, call: tuple[Any, ...]) -> bool:
        """Whether it is there and begins with ``call``."""
        try:
            self._pipe.send(call)
            return self._pipe.poll(BEGIN_S) and bool(self._pipe.recv() == BEGUN)
        except (EOFError, OSError):
            return False

    def answer(self) -> Any:
        """The value of the call begun, or what it raises. Raises WorkerDiedError, also where it
        hangs: whoever hears it kills the process."""
        try:
            if not self._pipe.poll(self._answer_s):
                raise WorkerDiedError(
                    f"The worker process gave no answer for {self._answer_s:g} s and was ended; "
                    "was it stopped, or does it need more memory than there is?"
                )
            worked, value = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(PATIENCE_S)
            raise WorkerDiedError(
                f"The worker process died ({_how(self._process.exitcode)}) over this; does it need "
                "more memory than there is?"
            ) from None
        if worked:
            return value
        raise value

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
    from domino_tune.jobs.work import import_ahead

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
