"""The other cores of this machine: results of the items that will be asked for next."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain, count
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")
MOST_WORKERS: Final = 8
"""More would mostly compute what is not asked for: the first results rule the rest out."""
AHEAD: Final = 2
"""Items that a worker has at a time."""
FEW: Final = 40
"""Items of some milliseconds that one core computes sooner than copies without its caches."""
WHILE_S: Final = 0.5
"""Seconds in which one core fills caches that copies then have, too."""
_is_copy: Final = threading.Event()


class Ahead(Protocol):
    """Give each item with a function that returns its result, or raises what computing it raised.

    Items may be taken, and their results computed, before their turn; not before they are needed.
    """

    def __call__(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Callable[[], Result]]]:
        """Go through ``items`` in order."""
        ...


def in_turn(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[tuple[Item, Callable[[], Result]]]:
    """Compute each result when it is asked for."""
    for item in items:
        yield item, lambda item=item: function(item)  # type: ignore[misc]


def on_all_cores(
    function: Callable[[Item], Result], items: Iterable[Item], *, most: int = MOST_WORKERS
) -> Generator[tuple[Item, Callable[[], Result]], None, None]:
    """Compute results ahead in copies of this process, one a core, where it may be copied.

    ``function`` must be pure; items and results must be picklable. Copies end with this process.
    """
    if not _may_copy():
        yield from in_turn(function, items)
        return
    with warnings.catch_warnings():
        # Python 3.12 warns of native threads; the only ones here are BLAS's, which handle a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        workers: list[_Worker[Item, Result]] = []
        for _ in range(min(most, _cores())):
            workers.append(_Worker(function, [one.connection for one in workers]))
    try:
        yield from _in_order(workers, items)
    finally:
        for worker in workers:
            worker.end()


def where_many(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[tuple[Item, Callable[[], Result]]]:
    """Compute many results ahead on all cores, and few in turn, in this process with its caches."""
    listed = list(items)
    ahead = on_all_cores if len(listed) > FEW else in_turn
    yield from ahead(function, listed)


def where_long(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[tuple[Item, Callable[[], Result]]]:
    """Compute results in turn, in this process with its caches, and on all cores what is left when
    they have taken a while."""
    coming, spent_s = iter(items), 0.0

    def timed(item: Item) -> Result:
        nonlocal spent_s
        began_s = time.perf_counter()
        try:
            return function(item)
        finally:
            spent_s += time.perf_counter() - began_s

    for item in coming:
        if spent_s > WHILE_S:
            yield from on_all_cores(function, chain((item,), coming))
            return
        yield item, lambda item=item: timed(item)  # type: ignore[misc]


class Beside(Protocol):
    """Give what returns a function's result, or raises what computing it raised."""

    def __call__(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Have the result ready when it is asked for, which is once."""
        ...


def later(function: Callable[[], Result]) -> Callable[[], Result]:
    """Compute the result when it is asked for."""
    return function


@contextmanager
def copies() -> Iterator[Beside]:
    """Give what computes results in copies of this process, which does not wait, where it may be
    copied and has another core. Copies that nobody asked end with the block."""
    with ExitStack() as open_ones:

        def in_a_copy(function: Callable[[], Result]) -> Callable[[], Result]:
            if not _may_copy():
                return function
            coming = on_all_cores(lambda _: function(), (None,), most=1)
            open_ones.callback(coming.close)
            _, result = next(coming)

            def ended() -> Result:
                with closing(coming):
                    try:
                        return result()
                    except (EOFError, ConnectionError):  # the copy was killed
                        return function()

            return ended

        yield in_a_copy


def _may_copy() -> bool:
    """Return whether there is another core, no thread holds a lock that a copy would wait for, and
    this is none itself."""
    alone = sys.platform == "linux" and threading.active_count() == 1
    return _cores() > 1 and alone and not _is_copy.is_set()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


class _Worker(Generic[Item, Result]):
    """A copy of this process, which answers items one after the other."""

    def __init__(self, function: Callable[[Item], Result], others: list[Connection]) -> None:
        from multiprocessing import get_context  # late: most answers need no copy

        context = get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(function, theirs, [*others, self.connection]), daemon=True
        )
        self._process.start()
        theirs.close()

    def send(self, item: Item) -> None:
        """Hand over an item; its result comes after those of the items before it."""
        self.connection.send(item)

    def result(self) -> Result:
        """Return the next result. Raise what computing it raised."""
        failed, value = self.connection.recv()
        if failed:
            raise value
        found: Result = value
        return found

    def end(self) -> None:
        """End the copy, whatever it does."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(
    function: Callable[[Item], Result], connection: Connection, others: list[Connection]
) -> None:
    """Answer items until the parent, whose ends are not kept open here, is gone."""
    _is_copy.set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    for other in others:
        other.close()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            item = connection.recv()
            try:
                answer: tuple[bool, object] = False, function(item)
            except Exception as error:
                answer = True, error
            connection.send(answer)


def _in_order(
    workers: list[_Worker[Item, Result]], items: Iterable[Item]
) -> Iterator[tuple[Item, Callable[[], Result]]]:
    """Keep every worker busy, each in its turn, and give the results in the order of items."""
    waiting: deque[tuple[Item, _Worker[Item, Result]]] = deque()
    numbers, coming = count(), iter(items)
    while True:
        while len(waiting) < AHEAD * len(workers):
            for item in coming:
                worker = workers[next(numbers) % len(workers)]
                worker.send(item)
                waiting.append((item, worker))
                break
            else:
                break
        if not waiting:
            return
        item, worker = waiting.popleft()
        taken: list[bool] = []

        def result(worker: _Worker[Item, Result] = worker, taken: list[bool] = taken) -> Result:
            taken.append(True)
            return worker.result()

        yield item, result
        if not taken:
            with suppress(Exception):
                worker.result()
