"""Bound and estimate of pipelines, from those of two ranks' own work.

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

import numpy as np

from simulator.bound_groups import BoundGroups
from simulator.case import Case
from simulator.closed_form import ClosedForm, EdgeWork, Floats, SpaceBounds
from simulator.overlap import EP_OVERLAP
from simulator.pipeline.build import each_ns
from simulator.pipeline.program import hosts_lead
from simulator.plan import SlicePlan
from simulator.shapes import Shapes
from simulator.specs import WGRADS_APART
from simulator.stack import kinds


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
