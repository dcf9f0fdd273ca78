"""DaskExecutor: slices on a Dask cluster, ``dask://host:port``.

Traffic with the scheduler carries pickles, so cluster and service trust each other: keep the
scheduler's port among them, with TLS where the network is shared
(https://distributed.dask.org/en/stable/tls.html; set in Dask's own configuration).

Where a worker dies, Dask cannot tell the call it was at from those that waited there: all of them
are tried on other workers, ``distributed.scheduler.allowed-failures`` times (3), and then broken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, Final

from domino_tune.service.executors.errors import ExecutorLostError, WorkerDiedError
from simulator.errors import InputError

CONNECT_S: Final = 10
CLOSE_S: Final = 1
LOST: Final = ("CommClosedError", "TimeoutError")
"""Errors of the way to the cluster. Other OSErrors are a slice's own, and would come again."""
DIED: Final = "Dask's workers died over this; does it need more memory than they have?"


class DaskExecutor(Executor):
    """Calls go through ``distributed.Client.get_executor``; a client that lost its scheduler is
    replaced at the next call. Raises InputError where there is no scheduler at ``place``."""

    def __init__(self, place: str) -> None:
        try:
            import distributed
        except ModuleNotFoundError:
            raise InputError(
                "A Dask cluster needs distributed; install it: pip install 'domino_tune[dask]'."
            ) from None
        self._connect: Callable[..., Any] = distributed.Client
        self._place = place
        self._lock = threading.Lock()
        self._client: Any = None
        self._closed = False
        try:
            self._open()
        except (ExecutorLostError, ValueError):
            raise InputError(
                f"No Dask scheduler answers at {place!r}; start one (`dask scheduler`), or give "
                "another --executor."
            ) from None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call ``fn``, which workers must be able to import. Raises ExecutorLostError."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        inner = self._open().submit(fn, *args, **kwargs)
        outer: Future[Any] = Future()
        outer.add_done_callback(lambda done: inner.cancel() if done.cancelled() else None)
        inner.add_done_callback(lambda done: _pass_on(done, outer))
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with ``wait`` those accepted are done first, else dropped."""
        self._closed = True
        if not self._lock.acquire(timeout=-1 if wait else CLOSE_S):
            return  # whoever is connecting closes what it gets
        try:
            if self._client is not None:
                self._pool.shutdown(wait=wait and not cancel_futures)
                self._client.close(timeout=CLOSE_S)
                self._client = None
        finally:
            self._lock.release()

    def _open(self) -> Executor:
        """The client's executor: a call is tried once, and never taken for an earlier one."""
        with self._lock:
            if self._client is None or self._client.status not in ("running", "connecting"):
                self._reconnect()
            return self._pool

    def _reconnect(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close(timeout=CLOSE_S)
            self._client = None
        try:
            # Without a scheme Dask takes the one that it is set to, tcp or tls.
            self._client = self._connect(self._place, timeout=CONNECT_S, set_as_default=False)
        except OSError as error:  # TimeoutError is one
            raise ExecutorLostError(f"No Dask scheduler answers at {self._place!r}.") from error
        if self._closed:
            self._client.close(timeout=CLOSE_S)
            self._client = None
            raise ExecutorLostError("The executor was shut down while it connected.")
        self._pool: Executor = self._client.get_executor(pure=False, retries=0)


def _pass_on(inner: Future[Any], outer: Future[Any]) -> None:
    """Settle ``outer`` as ``inner`` was, in our words."""
    if not outer.set_running_or_notify_cancel():
        return
    if inner.cancelled():
        outer.set_exception(
            ExecutorLostError("The Dask cluster dropped this; it may be back soon.")
        )
        return
    error = inner.exception()
    if error is None:
        outer.set_result(inner.result())
    elif type(error).__name__ == "KilledWorker":
        outer.set_exception(WorkerDiedError(DIED))
    elif type(error).__name__ in LOST:
        outer.set_exception(ExecutorLostError("The Dask cluster does not answer."))
    else:
        outer.set_exception(error)
