"""DaskExecutor: calls on a Dask cluster, ``dask://host:port``.

Messages to and from the scheduler are pickles, so that cluster and service must trust each other:
let nobody else reach the scheduler's port, and use TLS if the network is shared
(https://distributed.dask.org/en/stable/tls.html; set in Dask's own configuration).

When a worker dies, Dask cannot distinguish the call that it ran from those that waited there: it
tries all of them on other workers, ``distributed.scheduler.allowed-failures`` times (3), and then
fails them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from concurrent.futures import wait as _wait
from contextlib import suppress
from typing import Any, Final

from domino_tune.service.executors.errors import ExecutorLostError, WorkerDiedError
from simulator.errors import InputError

CONNECT_S: Final = 10
CLOSE_S: Final = 1
LOST: Final = ("CommClosedError", "TimeoutError")
"""Errors of the connection to the cluster. Other OSErrors come from the call itself and
would recur.
"""
DROPPED: Final = "The Dask cluster dropped this; it may be back soon."
DIED: Final = "Dask's workers died over this; does it need more memory than they have?"


class DaskExecutor(Executor):
    """Runs calls through a ``distributed.Client``; replaces a client that lost its scheduler at the
    next call. Raise InputError if no scheduler answers at ``place``.

    Dask's own executor never settles a call whose result is on its way when the connection breaks;
    here every accepted call ends.
    """

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
        self._calls: set[Future[Any]] = set()
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
        with self._lock:
            client = self._open()
            # Try each call once, and never reuse an old result.
            call = client.submit(fn, *args, pure=False, retries=0, **kwargs)
            future: Future[Any] = Future()
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        future.add_done_callback(lambda done: call.cancel() if done.cancelled() else None)
        client.loop.add_callback(_settle, call, future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. With ``wait``, finish the accepted ones first; otherwise
        drop them.
        """
        self._closed = True
        if not self._lock.acquire(timeout=-1 if wait else CLOSE_S):
            return  # the thread that is connecting closes the client
        try:
            if wait and not cancel_futures:
                _wait(self._calls)
            self._close()
        finally:
            self._lock.release()

    def _open(self) -> Any:
        """Return a connected client."""
        # A client that reconnects by itself keeps calls for later, and may lose them.
        if self._client is None or self._client.status != "running":
            self._close()
            self._client = self._reconnect()
        return self._client

    def _reconnect(self) -> Any:
        try:
            # Without a scheme Dask uses the configured one, tcp or tls.
            client = self._connect(self._place, timeout=CONNECT_S, set_as_default=False)
        except OSError as error:  # TimeoutError is one
            raise ExecutorLostError(f"No Dask scheduler answers at {self._place!r}.") from error
        if self._closed:
            client.close(timeout=CLOSE_S)
            raise ExecutorLostError("The executor was shut down while it connected.")
        return client

    def _close(self) -> None:
        """Close the client, if any, and fail its open calls."""
        if self._client is None:
            return
        with suppress(Exception):
            self._client.close(timeout=CLOSE_S)
        self._client = None
        for future in list(self._calls):
            _fail(future, ExecutorLostError(DROPPED))


async def _settle(call: Any, future: Future[Any]) -> None:
    """Settle ``future`` like Dask's ``call``, with our own errors. Runs in the client's loop."""
    try:
        result = await call
    except CancelledError:
        _fail(future, ExecutorLostError(DROPPED))
    except Exception as error:
        _fail(future, _ours(error))
    else:
        with suppress(InvalidStateError):  # cancelled, or dropped with its client
            future.set_result(result)


def _ours(error: Exception) -> Exception:
    name = type(error).__name__
    if name == "KilledWorker":
        return WorkerDiedError(DIED)
    if name in LOST:
        return ExecutorLostError("The Dask cluster does not answer.")
    return error


def _fail(future: Future[Any], error: Exception) -> None:
    with suppress(InvalidStateError):
        future.set_exception(error)
