"""The clock of an iteration: the largest at which its passes' mean power stays under the cap.

Play, find the clock, play again. A play at clock f₀ yields the time that the passes take on top of
their compute, T(f₀) − C(f₀), and so time and energy at every other clock,
    T(f) = T(f₀) + C(f) − C(f₀),   mean power = idle + E(f) / T(f),
where C adds up the compute alone and E what all ops draw above idle, both at f. At f₀ this is
exact. The search ends when a play yields the clock that it was played at. Where it cycles through
several clocks, take the largest of these that keeps the cap. The result is the largest clock that
keeps the cap, or within a step of it.

Energy is counted by an op's duration alone: contention and waits make an op longer, and its work
stays the same. So a schedule that hides communication has as much energy in less time.

The optimizer's step is left out: GPUs average power over tens of milliseconds, less than a
micro-batch takes, so a step that draws little cools no GEMM.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from simulator.compiler import Repriced, Totals, repriced
from simulator.cost import CostModel
from simulator.dtypes import S_PER_NS
from simulator.kernels import clocks as clock_kernels
from simulator.kernels.load import call
from simulator.op_table import PlayedSignature, listing_of, timed_row, timed_rows
from simulator.ops import Signature
from simulator.power import FAMILIES, PowerSection
from simulator.program import Program
from simulator.schedule import COMPUTE, Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

assert len(FAMILIES) == clock_kernels.FAMILIES
Run = TypeVar("Run")


class Power(NamedTuple):
    """Clock, mean power and energy of an iteration on one GPU. ``passes_w``: mean power of the
    passes, which the cap limits."""

    clock_mhz: int
    passes_w: float
    energy_j: float


@dataclass(frozen=True)
class Played:
    """A schedule at its clock, with the fast engine's sums and its power.

    ``cost``: the costs at that clock. ``power`` is None where the profile has no law of power.
    """

    plays: Repriced
    totals: Totals
    cost: CostModel
    power: Power | None

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return self.plays.schedule

    @cached_property
    def program(self) -> Program:
        """The program at that clock."""
        return self.plays.program(self.cost)


def settle(
    schedule: Schedule, cost: CostModel, law: PowerSection | None, most_mhz: int = 0
) -> Played:
    """Return ``schedule`` at its clock, at most ``most_mhz`` (0: boost)."""
    if law is None:
        plays = repriced(schedule, cost)
        return Played(plays, plays.totals(cost), cost, None)
    burden, plays = burden_of(schedule, cost, law), repriced(schedule, cost)

    def at(clock_mhz: int) -> Played:
        own = cost.at_clock(clock_mhz)
        return Played(plays, plays.totals(own), own, None)

    found, power = find_clock(burden, law.clocks(most_mhz), at, lambda one: one.totals.makespan_ns)
    return replace(found, power=power)


def find_clock(
    burden: Burden, clocks: range, play_at: Callable[[int], Run], makespan_ns: Callable[[Run], int]
) -> tuple[Run, Power]:
    """Return the play at the clock that keeps the cap, and its power."""
    clock = burden.clock(clocks, clocks[0], None)
    tried: dict[int, Run] = {}
    while clock not in tried:
        tried[clock] = play_at(clock)
        clock = burden.clock(clocks, clock, makespan_ns(tried[clock]))
    cap_w = burden.law.cap_w
    kept = [mhz for mhz, run in tried.items() if burden.passes_w(mhz, makespan_ns(run)) <= cap_w]
    chosen = max(kept, default=min(tried))
    return tried[chosen], burden.power(chosen, makespan_ns(tried[chosen]))


class Load(NamedTuple):
    """Time of ops one after the other (ns), and their energy above idle by family (J)."""

    alone_ns: int
    drawn_j: dict[str, float]


@dataclass(frozen=True)
class Burden:
    """Compute and energy of ops, at any clock. ``played``: what is played, in the order in which it
    is played first; ``times``: how often; ``timed``: the same as ``kernels.clocks`` takes it."""

    played: Sequence[PlayedSignature]
    times: NDArray[np.int64]
    timed: NDArray[np.float64]
    cost: CostModel
    law: PowerSection
    _loads: dict[tuple[int, bool], Load] = field(default_factory=dict)

    def load(self, clock_mhz: int, *, in_step: bool = False) -> Load:
        """Return time and energy of the passes, or of the step. The time of the passes is that of
        their compute; the step is one chain, so all its ops count."""
        key = clock_mhz, in_step
        if key not in self._loads:
            self._loads[key] = self._sum(clock_mhz, in_step=in_step)
        return self._loads[key]

    def _sum(self, clock_mhz: int, *, in_step: bool) -> Load:
        drawn_j = np.empty(len(FAMILIES))
        alone_ns = call(
            "load_at", self._rows, self.timed, self._law_values, clock_mhz, in_step, drawn_j
        )
        drawn = dict(zip(FAMILIES, drawn_j.tolist(), strict=True))
        cost = self.cost.at_clock(clock_mhz)
        for signature, played_in_step, count in self._fused:
            if played_in_step == in_step:
                drawn[signature.kind] += count * cost.energy_j(signature)
                alone_ns += count * cost.duration_ns(signature)
        return Load(alone_ns, drawn)

    def clock(self, clocks: range, played_mhz: int, makespan_ns: int | None) -> int:
        """Return the clock by a play at ``played_mhz`` (None: as if compute took all the time)."""
        beside_ns = 0
        if makespan_ns is not None:
            passes_ns = makespan_ns - self.load(played_mhz, in_step=True).alone_ns
            beside_ns = passes_ns - self.load(played_mhz).alone_ns

        if not self._fused:
            place = call(
                "find_clock", self._rows, self.timed, self._law_values, np.empty(len(FAMILIES)),
                clocks[0], -clocks.step, len(clocks), beside_ns,
            )  # fmt: skip
            return clocks[place]

        def keeps(mhz: int) -> bool:
            load = self.load(mhz)
            watts = self.law.idle_w + _mean_w(load, load.alone_ns + beside_ns)
            return watts <= self.law.cap_w

        index = bisect_left(clocks, True, key=keeps)
        return clocks[min(index, len(clocks) - 1)]

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        """How often each is played, whether it computes, and whether it is in the step."""
        marks = [(one.lane == COMPUTE or one.in_step, one.in_step) for one in self.played]
        return np.column_stack((self.times, np.array(marks, np.int64).reshape(-1, 2)))

    @cached_property
    def _fused(self) -> list[tuple[Signature, bool, int]]:
        """The kernels whose times follow from those of their parts, whether they are in the step,
        and their counts."""
        numbers = np.flatnonzero(self.timed[:, clock_kernels.KIND] == clock_kernels.FUSED)
        return [
            (self.played[one].signature, self.played[one].in_step, int(self.times[one]))
            for one in numbers.tolist()
        ]

    @cached_property
    def _law_values(self) -> NDArray[np.float64]:
        law = self.law
        return np.array([law.boost_mhz, law.exponent, law.idle_w, law.cap_w])

    def passes_w(self, clock_mhz: int, makespan_ns: int) -> float:
        """Return the mean power of the passes of an iteration that took ``makespan_ns``."""
        passes_ns = makespan_ns - self.load(clock_mhz, in_step=True).alone_ns
        return self.law.idle_w + _mean_w(self.load(clock_mhz), passes_ns)

    def power(self, clock_mhz: int, makespan_ns: int) -> Power:
        """Return the power of an iteration that took ``makespan_ns`` at a clock."""
        passes, step = (self.load(clock_mhz, in_step=part) for part in (False, True))
        passes_j, step_j = (sum(load.drawn_j.values()) for load in (passes, step))
        energy_j = passes_j + step_j + self.law.idle_w * makespan_ns * S_PER_NS
        return Power(
            clock_mhz=clock_mhz,
            passes_w=self.passes_w(clock_mhz, makespan_ns),
            energy_j=energy_j,
        )


def burden_of(schedule: Schedule, cost: CostModel, law: PowerSection) -> Burden:
    """Return the burden of a schedule."""
    listing = listing_of(schedule)
    timed = timed_rows(cost, listing)
    return Burden(listing.played, listing.times, timed, cost, law)


def summed_burden(
    counts: Mapping[PlayedSignature, int], cost: CostModel, law: PowerSection
) -> Burden:
    """Return the burden of ops, each with how often it is played."""
    times = np.array([*counts.values()], np.int64)
    timed = np.array([timed_row(cost, one) for one in counts], np.float64)
    return Burden(tuple(counts), times, timed, cost, law)


def _mean_w(load: Load, elapsed_ns: int) -> float:
    return sum(load.drawn_j.values()) / max(1, elapsed_ns) / S_PER_NS
