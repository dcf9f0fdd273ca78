"""Plays of one schedule on machines that differ in durations alone: other clocks, other draws.

It is compiled once, and another machine is another pricing of the arrays. Where a machine has the
effects that only CPU hosts have, it is compiled anew.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from simulator.compiler import compile_program, retimed
from simulator.contention import Family
from simulator.cost import AtClock, CostModel
from simulator.kernels import player
from simulator.kernels.load import call
from simulator.kernels.program_arrays import Pricing, arrays_of, priced
from simulator.ops import Fused, Gemm
from simulator.program import Program
from simulator.schedule import COMPUTE, Schedule
from simulator.totals import Totals, totals
from simulator.waves import waves_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


def repriced(schedule: Schedule, cost: CostModel) -> Repriced:
    """Return ``schedule``, compiled for machines like that of ``cost``; it is compiled once for all
    whose launches and admission of collectives are the same."""
    if _is_host(cost):
        return Repriced(schedule, cost)
    launch = cost.launch
    costs = tuple(launch.cost_ns.items())
    key = launch.mode, costs, launch.queue_depth, cost.contention.admission
    found = schedule.programs.get(key)
    if found is None:
        found = schedule.programs[key] = Repriced(schedule, cost)
    return found


def _is_host(cost: CostModel) -> bool:
    """Return whether the machine has effects that only CPU hosts have: they change a program's
    steps, not only their durations."""
    return (cost.skew, cost.resume, cost.idle_lane) != (None, None, None)


class Repriced:
    """A schedule, compiled with ``cost``, the first machine that it is played on."""

    def __init__(self, schedule: Schedule, cost: CostModel) -> None:
        self.schedule = schedule
        self.cost = cost
        self.first = compile_program(schedule, cost)
        self._arrays, self._pricing = arrays_of(self.first)
        self._timed_for: CostModel | None = None
        self._timed = np.empty((0, 4))

    def program(self, cost: CostModel) -> Program:
        """Return the program on the machine of ``cost``."""
        if cost is self.cost:
            return self.first
        made = retimed(self.first, self.schedule, cost)
        return replace(made, contention=cost.contention)

    def totals(self, cost: CostModel) -> Totals:
        """Return the sums of a play on the machine of ``cost``, of the same contention."""
        if cost is not self.cost and _is_host(cost):
            return totals(self.program(cost))
        return Totals.of(self._arrays.play(self.pricing(cost)))

    def pricing(self, cost: CostModel) -> Pricing:
        """Return the durations and slowdowns of the program's signatures."""
        if cost is self.cost:
            return self._pricing
        durations = self._durations(cost) + self._inline_ns
        first = durations * (self._waves - 1) // self._waves
        works = np.stack((durations, first, durations - first), axis=1) << 10
        if not cost.families_vary and cost.contention is self.cost.contention:
            numbers = np.concatenate((works, self._pricing.numbers[:, player.FAMILY :]), axis=1)
            return Pricing(numbers, self._pricing.rates, self._pricing.rows)
        return self._with_families(works, cost)

    def _durations(self, cost: CostModel) -> NDArray[np.int64]:
        signatures = self.first.signatures
        if not isinstance(cost, AtClock):
            return np.array([cost.duration_ns(one) for one in signatures], np.int64)
        if self._timed_for is not cost.timed_cost:
            ops = [(0.0,) * 4 if isinstance(one, Fused) else cost.timed(one) for one in signatures]
            self._timed_for, self._timed = cost.timed_cost, np.array(ops, np.float64)
        durations = np.empty(len(signatures), np.int64)
        call("durations_at", self._timed.reshape(-1, 4), cost.clock_mhz, durations)
        for number in self._fused:
            durations[number] = cost.duration_ns(signatures[number])
        return durations

    @cached_property
    def _fused(self) -> list[int]:
        """The numbers of kernels whose times follow from those of their parts."""
        signatures = enumerate(self.first.signatures)
        return [number for number, one in signatures if isinstance(one, Fused)]

    def _with_families(self, works: NDArray[np.int64], cost: CostModel) -> Pricing:
        families: list[dict[Family | None, int]] = [{None: 0} for _ in range(self.first.lanes)]
        numbers = np.empty((len(works), player.NUMBER_COLUMNS), np.int64)
        numbers[:, : player.FAMILY] = works
        for number, signature in enumerate(self.first.signatures):
            own = families[self._arrays.lanes_of[number]]
            numbers[number, player.FAMILY] = own.setdefault(cost.family(signature), len(own))
        return priced(numbers, [list(own) for own in families], cost.contention)

    @cached_property
    def _waves(self) -> NDArray[np.int64]:
        sms = self.cost.contention.sm_count
        return np.array(
            [
                waves_of(one, sms).waves if isinstance(one, Gemm) and sms else 1
                for one in self.first.signatures
            ],
            np.int64,
        )

    @cached_property
    def _inline_ns(self) -> NDArray[np.int64]:
        """Launch costs inside the ops; the drawn machines of a profile have costs of their own."""
        launch = self.cost.launch
        inline = launch.mode == "inline"
        return np.array(
            [
                launch.of(one) if inline and lane == COMPUTE else 0
                for one, lane in zip(self.first.signatures, self._arrays.lanes_of, strict=True)
            ],
            np.int64,
        )
