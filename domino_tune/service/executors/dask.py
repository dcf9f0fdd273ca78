"""DaskExecutor: calls on a Dask cluster, ``dask://host:port``.

Messages to and from the scheduler are pickles, so that cluster and service must trust each other:
let nobody else reach the scheduler's port, and use TLS where the network is shared
(https://distributed.dask.org/en/stable/tls.html; set in Dask's own configuration).

When a worker dies, Dask cannot tell the call that it ran from those that waited there: it tries all
of them on other workers, ``distributed.scheduler.allowed-failures`` times (3), and then fails them.
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
"""Errors of the connection to the cluster. Other OSErrors are the call's own and would recur."""
DIED: Final = "Dask's workers died over this; does it need more memory than they have?"


class DaskExecutor(Executor):
    """Run calls through ``distributed.Client.get_executor``; replace a client that lost its
    scheduler at the next call. Raise InputError where there is no scheduler at ``place``."""

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
        """Call ``fn``, which workers must be able to import. Raise ExecutorLostError."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        inner = self._open().submit(fn, *args, **kwargs)
        outer: Future[Any] = Future()
        outer.add_done_callback(lambda done: inner.cancel() if done.cancelled() else None)
        inner.add_done_callback(lambda done: _pass_on(done, outer))
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. With ``wait`` finish the accepted ones first; else drop them."""
        self._closed = True
        if not self._lock.acquire(timeout=-1 if wait else CLOSE_S):
            return  # the thread that is connecting closes the client
        try:
            if self._client is not None:
                self._pool.shutdown(wait=wait and not cancel_futures)
                self._client.close(timeout=CLOSE_S)
                self._client = None
        finally:
            self._lock.release()

    def _open(self) -> Executor:
        """Return the client's executor, which tries a call once and never reuses an old result."""
        with self._lock:
            # A client that reconnects by itself keeps calls for later, and may lose them.
            if self._client is None or self._client.status != "running":
                self._reconnect()
            return self._pool

    def _reconnect(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close(timeout=CLOSE_S)
            self._client = None
        try:
            # Without a scheme Dask uses the configured one, tcp or tls.
            self._client = self._connect(self._place, timeout=CONNECT_S, set_as_default=False)
        except OSError as error:  # TimeoutError is one
            raise ExecutorLostError(f"No Dask scheduler answers at {self._place!r}.") from error
        if self._closed:
            self._client.close(timeout=CLOSE_S)
            self._client = None
            raise ExecutorLostError("The executor was shut down while it connected.")
        self._pool: Executor = self._client.get_executor(pure=False, retries=0)


def _pass_on(inner: Future[Any], outer: Future[Any]) -> None:
    """Settle ``outer`` as ``inner``, with our own errors."""
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
