"""The executors by scheme: processes of this machine, or a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from simulator.errors import InputError, unknown_name


def open_executor(address: str, slots: int) -> Executor:
    """Return the executor at ``address``: ``local`` with ``slots`` processes, or
    ``dask://host:port``.

    This may take some seconds. Raise InputError for any other address, where Dask is not installed,
    or where no scheduler answers.
    """
    scheme, _, place = address.partition("://")
    if scheme not in EXECUTORS:
        raise unknown_name("executor", scheme, EXECUTORS)
    return EXECUTORS[scheme](place, slots)


def _local(place: str, slots: int) -> Executor:
    from domino_tune.service.executors.slots import SlotExecutor

    if place:
        raise InputError(f"The executor 'local' takes no address, got {place!r}; leave it out.")
    return SlotExecutor(slots)


def _dask(place: str, slots: int) -> Executor:
    from domino_tune.service.executors.dask import DaskExecutor

    return DaskExecutor(place)


EXECUTORS: Final[dict[str, Callable[[str, int], Executor]]] = {"local": _local, "dask": _dask}
