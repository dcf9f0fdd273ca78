"""The executors by scheme: processes of this machine, or a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from domino_tune.service.executors.job import JobExecutor
from simulator.errors import InputError, unknown_name


def open_executor(address: str, slots: int) -> JobExecutor:
    """Return the executor at ``address``: ``local``, or ``dask://host:port``; ``slots``: jobs that
    run at once here.

    This may take some seconds. Raise InputError for any other address, where Dask is not installed,
    or where no scheduler answers.
    """
    scheme, _, place = address.partition("://")
    if scheme not in EXECUTORS:
        raise unknown_name("executor", scheme, EXECUTORS)
    return EXECUTORS[scheme](place, slots)


def _local(place: str, slots: int) -> JobExecutor:
    from domino_tune.service.executors.local import LocalExecutor

    if place:
        raise InputError(f"The executor 'local' takes no address, got {place!r}; leave it out.")
    return LocalExecutor(slots)


def _dask(place: str, slots: int) -> JobExecutor:
    from domino_tune.service.executors.dask import DaskExecutor

    return DaskExecutor(place)


EXECUTORS: Final[dict[str, Callable[[str, int], JobExecutor]]] = {"local": _local, "dask": _dask}
