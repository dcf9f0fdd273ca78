"""Plays of one schedule on machines that differ in durations alone: other clocks, other draws.

It is compiled once, and another machine is another pricing of the arrays. Where a machine has the
effects that only CPU hosts have, it is compiled anew.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simulator.compiler import compile_program, compile_schedule
from simulator.contention import Family
from simulator.cost import AtClock, CostModel
from simulator.kernels import player
from simulator.kernels.load import call
from simulator.kernels.program_arrays import Pricing, ProgramArrays, priced
from simulator.ops import Fused
from simulator.program import WORK_UNIT, Program
from simulator.schedule import COMPUTE, Schedule
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
        self.timed = np.empty((0, 4))


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
        own, waves = self._compiled.pricing, self._compiled.waves
        if cost is self.cost:
            return own
        durations = self._durations(cost) + self._inline_ns(cost)
        first = durations * (waves - 1) // waves
        numbers = np.stack(
            (durations, first, durations - first, own.numbers[:, player.FAMILY]), axis=1
        )
        numbers[:, : player.FAMILY] *= WORK_UNIT
        if not cost.contention.depends_on_streams and cost.contention is self.cost.contention:
            return own._replace(numbers=numbers)
        return self._with_families(numbers, cost)

    def _durations(self, cost: CostModel) -> NDArray[np.int64]:
        signatures = self._compiled.signatures
        if not isinstance(cost, AtClock):
            return np.array([cost.duration_ns(one) for one in signatures], np.int64)
        first = self._first
        if first.timed_for is not cost.timed_cost:
            ops = [(0.0,) * 4 if isinstance(one, Fused) else cost.timed(one) for one in signatures]
            first.timed_for, first.timed = cost.timed_cost, np.array(ops, np.float64).reshape(-1, 4)
        durations = np.empty(len(signatures), np.int64)
        call("durations_at", first.timed, cost.clock_mhz, durations)
        for number in self._fused:
            durations[number] = cost.duration_ns(signatures[number])
        return durations

    @cached_property
    def _fused(self) -> list[int]:
        """The numbers of kernels whose times follow from those of their parts."""
        signatures = enumerate(self._compiled.signatures)
        return [number for number, one in signatures if isinstance(one, Fused)]

    def _inline_ns(self, cost: CostModel) -> NDArray[np.int64]:
        """Return the launch costs inside the ops."""
        launch, made = cost.launch, self._compiled
        if launch.mode != "inline":
            return np.zeros(len(made.signatures), np.int64)
        played = zip(made.signatures, made.arrays.lanes_of, strict=True)
        inline = [launch.of(one) if lane == COMPUTE else 0 for one, lane in played]
        return np.array(inline, np.int64)

    def _with_families(self, numbers: NDArray[np.int64], cost: CostModel) -> Pricing:
        made = self._compiled
        families: list[dict[Family | None, int]] = [{None: 0} for _ in made.pricing.families]
        for number, signature in enumerate(made.signatures):
            own = families[made.arrays.lanes_of[number]]
            numbers[number, player.FAMILY] = own.setdefault(cost.family(signature), len(own))
        return priced(numbers, families, cost.contention)
