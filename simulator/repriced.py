"""Plays of one schedule on machines that differ in durations alone: other clocks, other draws.

It is compiled once, and another machine is another pricing of the arrays. Where a machine has the
effects that only CPU hosts have, it is compiled anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simulator.by_signature import families_of, timed_rows
from simulator.compiler import compile_program, compile_schedule, priced_signatures
from simulator.cost import AtClock, CostModel
from simulator.kernels import clocks, compiler, player
from simulator.kernels.load import call
from simulator.kernels.program_arrays import Pricing, ProgramArrays
from simulator.program import Program
from simulator.schedule import Schedule
from simulator.totals import Totals

if TYPE_CHECKING:
    from numpy.typing import NDArray


NEVER_NS: Final = -(1 << 60)
"""``held_ns`` of what does not stop its host."""


def repriced(schedule: Schedule, cost: CostModel) -> Repriced:
    """Return ``schedule``, compiled for machines like that of ``cost``; it is compiled once for all
    whose launches and admission of collectives are the same."""
    if _is_host(cost):
        return Repriced(schedule, cost)
    key = cost.launch.key, cost.contention.admission
    found = schedule.programs.get(key)
    if found is None:
        found = schedule.programs[key] = _First(schedule, cost)
    return Repriced(schedule, cost, found)


def _is_host(cost: CostModel) -> bool:
    """Return whether the machine has effects that only CPU hosts have: they change a program's
    steps, not only their durations."""
    return (cost.skew, cost.resume, cost.idle_lane) != (None, None, None)


class Led(NamedTuple):
    """``totals``: of a play behind a host that is far ahead. ``late_ns``: the play's time if the
    host begins with it, and ``issued_ns`` when that has issued all; ``held_ns``: when it has at the
    earliest after the play begins. ``computes``: compute ops."""

    totals: Totals
    late_ns: int
    issued_ns: int
    held_ns: int
    computes: int


class _First:
    """What the first machine that a schedule is played on makes of it, and the timed ops of the
    last one at a clock. The schedule keeps it, so it keeps no schedule."""

    def __init__(self, schedule: Schedule, cost: CostModel) -> None:
        self.cost = cost
        self.compiled = compile_schedule(schedule, cost)
        self.timed_for: CostModel | None = None
        self.timed = np.empty((0, clocks.TIMED_COLUMNS))


class Repriced:
    """A schedule, compiled with ``cost``, or with that of ``first``, the first machine that it was
    played on."""

    def __init__(self, schedule: Schedule, cost: CostModel, first: _First | None = None) -> None:
        self.schedule = schedule
        self._first = first or _First(schedule, cost)
        self.cost, self._compiled = self._first.cost, self._first.compiled

    def program(self, cost: CostModel) -> Program:
        """Return the program on the machine of ``cost``."""
        if cost is not self.cost and _is_host(cost):
            return compile_program(self.schedule, cost)
        return self._compiled.program(cost, self.pricing(cost))

    def totals(self, cost: CostModel) -> Totals:
        """Return the sums of a play on the machine of ``cost``."""
        arrays, pricing = self.arrays(cost)
        return Totals.of(arrays.play(pricing))

    def led(self, cost: CostModel) -> Led:
        """Return a play behind a host that is far ahead, and what it is if the host begins with
        the device."""
        arrays, pricing = self.arrays(cost)
        led, late = arrays.play(pricing, led=True), arrays.play(pricing)
        held_ns = led.issued_ns if arrays.stops else NEVER_NS
        return Led(Totals.of(led), late.sums[0], late.issued_ns, held_ns, arrays.computes)

    def arrays(self, cost: CostModel) -> tuple[ProgramArrays, Pricing]:
        """Return the program as arrays, and its pricing on the machine of ``cost``."""
        if cost is not self.cost and _is_host(cost):
            made = compile_schedule(self.schedule, cost)
            return made.arrays, made.pricing
        return self._compiled.arrays, self.pricing(cost)

    def pricing(self, cost: CostModel) -> Pricing:
        """Return the durations and slowdowns of the program's signatures."""
        made = self._compiled
        if cost is self.cost:
            return made.pricing
        durations = self._durations(cost)
        if cost.contention.depends_on_streams or cost.contention is not self.cost.contention:
            rows = made.rows.copy()
            rows[:, compiler.N_FAMILY] = families_of(cost, made.listing)
            return priced_signatures(made.listing.table, rows, durations, cost.contention)
        numbers = np.empty((len(durations), player.NUMBER_COLUMNS), np.int64)
        call("price", made.rows, durations, numbers)
        return made.pricing._replace(numbers=numbers)

    def _durations(self, cost: CostModel) -> NDArray[np.int64]:
        made = self._compiled
        if not isinstance(cost, AtClock):
            return np.array([cost.duration_ns(one) for one in made.signatures], np.int64)
        first = self._first
        if first.timed_for is not cost.timed_cost:
            first.timed_for, first.timed = cost.timed_cost, timed_rows(cost, made.listing)
        durations = np.empty(len(first.timed), np.int64)
        call("durations_at", first.timed, cost.clock_mhz, durations)
        for number in np.flatnonzero(first.timed[:, clocks.KIND] == clocks.FUSED).tolist():
            durations[number] = cost.duration_ns(made.signatures[number])
        return durations
