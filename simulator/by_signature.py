"""Numbers of signatures on a machine: each is looked up when a schedule has it first.

Plans of a case have some hundred signatures together. So a row of numbers is made once for all
schedules whose ops are in the same table, and a schedule picks its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.cost import AtClock, CostModel
from simulator.kernels import clocks, compiler
from simulator.op_table import Listing, OpTable, Played
from simulator.ops import Collective, Fused
from simulator.power import FAMILIES
from simulator.waves import OPEN, room_beside

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

Make = Callable[[Played], Sequence[float]]


class Rows:
    """Rows of numbers of a table's signatures."""

    def __init__(self, table: OpTable, make: Make, columns: int, dtype: type) -> None:
        self._table, self._make = table, make
        self._rows: NDArray[Any] = np.empty((0, columns), dtype)
        self._known = np.empty(0, bool)
        self._filling = Lock()

    def of(self, numbers: Ints) -> NDArray[Any]:
        """Return the rows of signatures by their numbers."""
        with self._filling:
            kinds, (known, columns) = len(self._table.played), self._rows.shape
            if known < kinds:
                rows = np.zeros((2 * kinds, columns), self._rows.dtype)
                rows[:known] = self._rows
                self._rows = rows
                self._known = np.append(self._known, np.zeros(2 * kinds - known, bool))
            for number in numbers[~self._known[numbers]].tolist():
                self._rows[number] = self._make(self._table.played[number])
                self._known[number] = True
            return self._rows[numbers]


def rows_of(
    cost: CostModel, what: object, table: OpTable, make: Make, columns: int, dtype: type = np.int64
) -> Rows:
    """Return the rows of a table's signatures that say ``what`` of them on a machine."""
    found: Rows | None = cost.kept.get((what, table))
    if found is None:
        found = cost.kept[what, table] = Rows(table, make, columns, dtype)
    return found


def durations_of(cost: CostModel, table: OpTable, numbers: Ints) -> Ints:
    """Return the ns of signatures, by their numbers in a table."""

    def made(one: Played) -> tuple[int, ...]:
        return (cost.duration_ns(one.signature),)

    return rows_of(cost, durations_of, table, made, 1).of(numbers).ravel()


def timed_row(cost: AtClock, one: Played) -> tuple[float, ...]:
    """Return a signature as ``kernels.clocks`` takes it: what determines its time and power at any
    clock, and its kind."""
    if isinstance(one.signature, Fused):
        return 0.0, 0.0, 0.0, 0.0, clocks.FUSED
    return *cost.timed(one.signature), FAMILIES.index(one.signature.kind)


def timed_rows(cost: AtClock, listing: Listing) -> Floats:
    """Return the same of a schedule's signatures."""
    made, columns = partial(timed_row, cost), clocks.TIMED_COLUMNS
    rows = rows_of(cost.timed_cost, timed_row, listing.table, made, columns, np.float64)
    return rows.of(listing.numbers)


def families_of(cost: CostModel, listing: Listing) -> Ints:
    """Return the numbers of the contention families of a schedule's signatures in its table."""
    table = listing.table

    def made(one: Played) -> tuple[int, ...]:
        return (table.family(cost.family(one.signature)),)

    return rows_of(cost, families_of, table, made, 1).of(listing.numbers).ravel()


def compiled_rows(cost: CostModel, listing: Listing) -> Ints:
    """Return a schedule's signatures as ``kernels.compiler`` takes them; families have their
    numbers in the table."""
    table = listing.table
    needed = rows_of(cost, _needs, table, lambda one: (_needs(cost, one),), 1).of(listing.numbers)
    # Only an op whose last wave has room for one of these collectives is two steps.
    least = int(min(needed[needed > 0], default=OPEN))

    def made(one: Played) -> tuple[int, ...]:
        return _compiled(cost, one, least)

    columns = compiler.SIGNATURE_COLUMNS
    rows = rows_of(cost, least, table, made, columns).of(listing.numbers)
    rows[:, compiler.N_FAMILY] = families_of(cost, listing)
    return rows


def _needs(cost: CostModel, one: Played) -> int:
    if not isinstance(one.signature, Collective) or one.signature.needs_no_room:
        return 0
    return cost.contention.sms_of(cost.family(one.signature))


def _compiled(cost: CostModel, one: Played, least: int) -> tuple[int, ...]:
    """Return the row of a signature without its family. ``least``: the fewest SMs that a collective
    of the schedule needs."""
    launch, signature = cost.launch, one.signature
    duration_ns, idle = cost.awake_ns(signature), cost.idle_times(signature)
    launch_ns = launch.of(signature, replayed=one.replayed) if launch.mode != "none" else 0
    inline_ns = launch_ns if launch.mode == "inline" else 0
    if isinstance(signature, Collective):  # an awake lane needs no launch
        idle, inline_ns = idle._replace(wake_ns=idle.wake_ns + inline_ns), 0
    waves, room = room_beside(signature, cost.contention, least)
    time_ns = duration_ns + inline_ns
    return (
        launch_ns, room, _needs(cost, one), time_ns * (waves - 1) // waves > 0, *idle, time_ns,
        launch.stops(signature), 0, one.lane, waves, inline_ns,
    )  # fmt: skip
