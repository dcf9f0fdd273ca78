"""Closed forms beyond one rank at a fixed clock: of pipelines, and of a clock held by power.

A rank of a pipeline plays all its passes and its step. Before its first forward, a micro-batch
passes the first chunks of all ranks before it; after its last backward it goes back through them.
So an iteration takes at least the rank's own work and these passes. That holds for each rank, and
the *critical* one is that for which it is most, as far as numbers of layers tell: of ranks with
equally many layers the last. Energy is the busiest rank's, which sets the clock. With gradients of
weights apart, a rank may play its own while the others end, so only the way there counts. While the
last micro-batch goes back, a rank behind the first sums the gradients of its first chunk over the
replicas, in one bucket that is whole when its last backward ends: the longer of both counts. Where
messages block, each pass begins with its host, and takes as long as that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np

from simulator.case import Case
from simulator.closed_form import ClosedForm, EdgeWork, Floats, SpaceBounds, bound_key
from simulator.dtypes import S_PER_NS
from simulator.overlap import EP_OVERLAP
from simulator.pipeline.build import each_ns
from simulator.pipeline.program import hosts_lead
from simulator.plan import SlicePlan
from simulator.power import PowerSection
from simulator.recipes import Recipes
from simulator.shapes import Shapes
from simulator.specs import WGRADS_APART
from simulator.stack import kinds
from simulator.stretch import BoundGroups


class PipelineForm:
    """Bound and estimate for the plans of a case with a pipeline, from the forms of its busiest and
    its critical rank."""

    def __init__(self, case: Case, busiest: ClosedForm, critical: ClosedForm) -> None:
        self.case = case
        self.rank, self._critical = busiest, critical
        self._kinds = tuple(kinds(case.model, case.workload))
        self._summed: dict[bool, int] = {}
        self._leads = hosts_lead(case.workload, busiest.cost)
        before = case.chunks[: case.critical_rank]
        self._layers_before = sum(chunks[0].layers for chunks in before)

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Return a bound that is never above ``predict(case, plan).makespan_ns``."""
        fill_ns = int(self._fill_ns(plan))
        if self._leads:
            return self._critical.lower_bound_ns(plan, fill_ns)
        return self._critical.lower_bound_ns(plan, apart=_is_apart(plan)) + fill_ns

    def bounds(self, groups: BoundGroups) -> SpaceBounds:
        """Return ``lower_bound_ns`` and ``drawn_j`` of each plan."""
        fill_ns = np.array([int(self._fill_ns(plan)) for plan in groups.plans], np.float64)
        if self._leads:
            found = self._critical.bounds(groups, fill_ns)
        else:
            apart = all(map(_is_apart, groups.plans))
            found = self._critical.bounds(groups, apart=apart)
            found = found._replace(lower_ns=found.lower_ns + fill_ns)
        if self._critical is self.rank:
            return found
        return found._replace(drawn_j=self.rank.bounds(groups).drawn_j)

    quick_bound_ns = coarse_bound_ns = lower_bound_ns
    """At one clock there is nothing to leave out."""

    def quick_bounds_ns(self, groups: BoundGroups) -> Floats:
        """Return ``quick_bound_ns`` of each plan."""
        return self.bounds(groups).lower_ns

    def prior_ns(self, plan: SlicePlan) -> float:
        """Return an estimate (ns)."""
        cluster, micros = self.case.cluster, self.case.workload.grad_accumulation
        bubble = (cluster.pp - 1) / (cluster.vpp * micros)
        if self.case.workload.pp_schedule in WGRADS_APART:
            bubble /= 3
        return self.rank.prior_ns(plan) * (1 + bubble)

    def drawn_j(self, plan: SlicePlan) -> float:
        """Return the least energy above idle of the busiest rank's passes."""
        return self.rank.drawn_j(plan)

    def step_ns_of(self, groups: BoundGroups) -> Floats:
        """Return the busiest rank's step of each plan, ns."""
        return self.rank.step_ns_of(groups)

    def edges(self, plan: SlicePlan) -> EdgeWork:
        """Return the busiest rank's compute outside the layers."""
        return self.rank.edges(plan)

    def _fill_ns(self, plan: SlicePlan) -> float:
        passes = self._critical.least_passes(plan, self._kinds)
        apart = not self._leads and _is_apart(plan)
        forward, backward = (one.alone_ns if apart else one.least_ns for one in passes)
        if self.case.workload.pp_schedule in WGRADS_APART:
            backward = 0.0
        way, back = (self._layers_before * one for one in (forward, backward))
        return way + max(back, self._summed_ns(plan))

    def _summed_ns(self, plan: SlicePlan) -> int:
        """Return the time of the critical rank's last sum of gradients, which no pass hides."""
        alone = plan.strategy == "no_comm"
        if alone not in self._summed:
            self._summed[alone] = self._last_sum_ns(self.case.shapes(plan))
        return self._summed[alone]

    def _last_sum_ns(self, whole: Shapes) -> int:
        rank = self.case.critical_rank
        if rank == 0 or not (whole.reduces and self.case.workload.overlap_grad_reduce):
            return 0
        held = self.case.chunks[rank][0].of(whole).held
        return each_ns(self.rank.cost, whole.dp_reduction, held)


def _is_apart(plan: SlicePlan) -> bool:
    """Return whether no other pass runs beside one."""
    return plan.strategy != EP_OVERLAP


# Closed forms of plans whose clock is held by power -----------------------------------------------
# At clock f an iteration takes at least LB(f), the bound of ``closed_form`` at that clock, and, to
# keep the cap, at least step + E(f) / (cap − idle), where E is what its passes draw above idle. The
# first falls with f and the second rises, and the iteration has one clock, so it takes at least
#     min over f of max(LB(f), step + E(f) / (cap − idle)),
# which lies where the two cross. Energy rises with f because the law's exponent is at least 1,
# which no elasticity exceeds.

COARSE: Final = 8
"""Stride between the clocks of a coarse bound."""
SAFETY: Final = 1e-6
"""Relative margin for the rounding of durations to whole nanoseconds."""


Form = ClosedForm | PipelineForm
Drawn = TypeVar("Drawn", float, Floats)


class Layers:
    """What bounds of cases with the same kinds of layers and micro-batches share: the recipes and,
    at each clock (0: that of the timings), the form of each kind of rank; which clock was found
    last (``near``), and one that was found (``clock_mhz``)."""

    def __init__(self) -> None:
        self._recipes: dict[tuple[object, ...], Recipes] = {}
        self._forms: dict[tuple[object, ...], ClosedForm] = {}
        self._first: dict[int, ClosedForm] = {}
        self.near = 0
        self.clock_mhz: int | None = None

    def form(self, case: Case, clock_mhz: int = 0) -> Form:
        """Return the form of a case at a clock: that of a pipeline, or of a rank with all
        layers."""
        if case.cluster.pp == 1:
            return self._form(case, None, clock_mhz)
        busiest, critical = (
            self._form(case, rank, clock_mhz) for rank in (case.busiest_rank, case.critical_rank)
        )
        return PipelineForm(case, busiest, critical)

    def _form(self, case: Case, rank: int | None, clock_mhz: int) -> ClosedForm:
        """Return the form of a rank, which others with the same layers share."""
        work = case.workload
        key: tuple[object, ...] = work.recompute, work.grad_accumulation, case.cluster.dp
        key += (work.recompute_layers,) if rank is None else case.rank_load(rank)
        if (key, clock_mhz) not in self._forms:
            if key not in self._recipes:
                like = next(iter(self._recipes.values()), None)
                whole = case if rank is None else case.of_rank(rank)
                self._recipes[key] = Recipes(whole, like)
            recipes, cost = self._recipes[key], case.cost_at(clock_mhz or None)
            made = ClosedForm(recipes.case, cost, recipes, self._first.get(clock_mhz))
            self._first.setdefault(clock_mhz, made)
            self._forms[key, clock_mhz] = made
        return self._forms[key, clock_mhz]


def closed_form(case: Case, layers: Layers | None = None) -> Form | ClockedForm:
    """Return bound and estimate for the plans of a case, at their clocks where power holds them.

    ``layers``: of cases that differ in the numbers of layers, micro-batches, stages and replicas.
    """
    shared = layers or Layers()
    if case.power is None:
        return shared.form(case)
    return ClockedForm(case, case.power, shared)


class ClockedForm:
    """Bound and estimate for the plans of one case."""

    def __init__(self, case: Case, law: PowerSection, layers: Layers) -> None:
        self.case = case
        self.law = law
        self._layers = layers
        self._forms: dict[int, Form] = {}
        self._found: dict[tuple[object, ...], tuple[int, int]] = {}
        self._near = 0

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        """Return a bound that is never above ``predict(case, plan).makespan_ns``."""
        return self._crossing(plan)[1]

    def coarse_bound_ns(self, plan: SlicePlan) -> int:
        """Return a lower bound that is not above ``lower_bound_ns``, from fewer clocks.

        Between two clocks an iteration takes at least LB at the higher and E at the lower one.
        """
        clocks = self.law.clocks(self.case.cluster.clock_mhz)[::COARSE]

        def bound_decides(mhz: int) -> bool:
            return self._energy_ns(plan, mhz) <= self._bound_ns(plan, mhz)

        index = _first(clocks, bound_decides, near=self._layers.near)
        self._layers.near = index
        if index == 0:
            return self._bound_ns(plan, clocks[0])
        higher_ns = self._bound_ns(plan, clocks[index - 1])
        if index == len(clocks):
            return higher_ns
        return max(higher_ns, self._energy_ns(plan, clocks[index]))

    def quick_bound_ns(self, plan: SlicePlan) -> int:
        """Return a lower bound that is not above ``lower_bound_ns``, from one clock, at which
        another plan of these layers had its own.

        An iteration takes at least E of this clock if its own is higher, else LB.
        """
        highest = self.law.clocks(self.case.cluster.clock_mhz)[0]
        if self._layers.clock_mhz is None:
            self._layers.clock_mhz = self._crossing(plan)[0]
        clock_mhz = min(self._layers.clock_mhz, highest)
        bound_ns = self._bound_ns(plan, clock_mhz)
        if clock_mhz == highest:
            return bound_ns
        return min(bound_ns, self._energy_ns(plan, clock_mhz))

    def quick_bounds_ns(self, groups: BoundGroups) -> Floats:
        """Return ``quick_bound_ns`` of each plan."""
        highest = self.law.clocks(self.case.cluster.clock_mhz)[0]
        if self._layers.clock_mhz is None and groups.plans:
            self._layers.clock_mhz = self._crossing(groups.plans[0])[0]
        clock_mhz = min(self._layers.clock_mhz or highest, highest)
        bounds = self._form(clock_mhz).bounds(groups)
        if clock_mhz == highest:
            return bounds.lower_ns
        step_ns = self._form(highest).step_ns_of(groups)
        kept_ns = np.floor((self._passes_ns(bounds.drawn_j) + step_ns) * (1 - SAFETY))
        return np.minimum(bounds.lower_ns, kept_ns)

    def prior_ns(self, plan: SlicePlan) -> float:
        """Return an estimate (ns) at the clock that the bound finds."""
        return self._form(self._crossing(plan)[0]).prior_ns(plan)

    def _crossing(self, plan: SlicePlan) -> tuple[int, int]:
        """Return the clock from which on the cap decides no longer, and the bound (ns)."""
        key = bound_key(plan)
        if key not in self._found:
            clocks = self.law.clocks(self.case.cluster.clock_mhz)

            def bound_decides(mhz: int) -> bool:
                return self._energy_ns(plan, mhz) <= self._bound_ns(plan, mhz)

            index = _first(clocks, bound_decides, near=self._near)
            self._near = index
            clock = clocks[min(index, len(clocks) - 1)]
            bound_ns = self._bound_ns(plan, clock)
            if 0 < index < len(clocks):
                bound_ns = min(bound_ns, self._energy_ns(plan, clocks[index - 1]))
            self._found[key] = clock, bound_ns
        return self._found[key]

    def _form(self, clock_mhz: int) -> Form:
        if clock_mhz not in self._forms:
            self._forms[clock_mhz] = self._layers.form(self.case, clock_mhz)
        return self._forms[clock_mhz]

    def _bound_ns(self, plan: SlicePlan, clock_mhz: int) -> int:
        return self._form(clock_mhz).lower_bound_ns(plan)

    def _energy_ns(self, plan: SlicePlan, clock_mhz: int) -> int:
        """Return a lower bound (ns) from energy: the least time in which the passes keep the cap,
        plus the step at the highest clock, where it is shortest."""
        highest = self.law.clocks(self.case.cluster.clock_mhz)[0]
        passes_ns = self._passes_ns(self._form(clock_mhz).drawn_j(plan))
        return int((passes_ns + self._form(highest).edges(plan).step_ns) * (1 - SAFETY))

    def _passes_ns(self, drawn_j: Drawn) -> Drawn:
        """Return the least ns in which passes that draw ``drawn_j`` keep the cap."""
        return drawn_j / (self.law.cap_w - self.law.idle_w) / S_PER_NS


def _first(clocks: range, holds: Callable[[int], bool], near: int) -> int:
    """Return the first index whose clock holds, as all later ones do; start the search at
    ``near``."""
    low, high, step = 0, len(clocks), 1
    at = min(near, len(clocks) - 1)
    while low < high:
        if holds(clocks[at]):
            high, at = at, max(low, at - step)
            if high == low or at == high:
                return high
        else:
            low, at = at + 1, min(high - 1, at + step)
        if low <= at < high and step < high - low:
            step *= 2
            continue
        return bisect_left(clocks, True, low, high, key=holds)
    return low
