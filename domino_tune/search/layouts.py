"""Search of layouts: the best plan of each, best bound first, and the best ones of all.

All candidates train the same global batch on the same number of GPUs, so the shortest iteration is
the best. A candidate is looked at only while its bound is below the time of the last one that is
kept, its plans only while their bounds are below the candidate's best. So the layouts that are kept
are proven to be the fastest among all candidates and plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from simulator.case import Case
from simulator.clocked_form import ClockedForm, Layers, closed_form
from simulator.closed_form import ClosedForm
from simulator.errors import InfeasiblePlanError
from simulator.ordering import order_of
from simulator.peak import peak_bytes
from simulator.pipeline.closed_form import PipelineForm
from simulator.pipeline.memory import KeptBytes
from simulator.plan import SlicePlan
from simulator.predict import predict

KEPT: Final = 10
"""Layouts of an answer."""
FOREVER_NS: Final = 1 << 62


class Timed(NamedTuple):
    """A plan that fits, ns of an iteration, and the bytes of the fullest rank."""

    plan: SlicePlan
    iteration_ns: int
    peak_bytes: int


@dataclass(kw_only=True, eq=False)
class Candidate:
    """A layout as a case, with the plans that slice it and those that do not.

    ``layers``, ``kept``: what its bounds share with those of other layouts. ``timed``: what was
    found.
    """

    case: Case
    sliced: Sequence[SlicePlan]
    unsliced: Sequence[SlicePlan]
    layers: Layers
    kept: KeptBytes
    timed: dict[SlicePlan, Timed | None] = field(default_factory=dict)

    @cached_property
    def _form(self) -> ClosedForm | PipelineForm | ClockedForm:
        return closed_form(self.case, self.layers)

    @cached_property
    def coarse_ns(self) -> dict[SlicePlan, int]:
        """A quick bound of each plan."""
        plans = (*self.sliced, *self.unsliced)
        return {plan: self._form.coarse_bound_ns(plan) for plan in plans}

    @cached_property
    def bounds_ns(self) -> dict[SlicePlan, int]:
        """The proven bound of each plan, least first."""
        bounds = {plan: self._form.lower_bound_ns(plan) for plan in self.coarse_ns}
        return dict(sorted(bounds.items(), key=lambda item: item[1]))

    def coarse_bound_ns(self, plans: Iterable[SlicePlan]) -> int:
        """Return the least quick bound of ``plans``."""
        return min((self.coarse_ns[plan] for plan in plans), default=FOREVER_NS)

    def best(self, plans: Iterable[SlicePlan] | None = None) -> Timed | None:
        """Return the fastest of the evaluated ``plans``, or of all."""
        found = (self.timed.get(plan) for plan in (self.timed if plans is None else plans))
        fits = [one for one in found if one is not None]
        return min(fits, key=lambda one: one.iteration_ns, default=None)

    def best_ns(self, plans: Iterable[SlicePlan] | None = None) -> int:
        """Return the time of ``best``, FOREVER_NS where nothing fits."""
        found = self.best(plans)
        return found.iteration_ns if found else FOREVER_NS

    @cached_property
    def _least_bytes(self) -> dict[bool, int]:
        """Bytes that no plan needs less than, with and without sequence parallelism."""
        return {
            plan.sequence_parallel: self.kept.least_bytes(self.case, plan) for plan in self.unsliced
        }

    @property
    def may_fit(self) -> bool:
        """Whether a plan may fit."""
        return min(self._least_bytes.values()) <= self.case.capacity_bytes

    @property
    def fits_not(self) -> bool:
        """Whether no plan fits, of which each was looked at."""
        return len(self.timed) == len(self.coarse_ns) and self.best() is None

    def evaluate(self, plan: SlicePlan) -> None:
        """Time ``plan``, unless it does not fit."""
        if self._least_bytes[plan.sequence_parallel] > self.case.capacity_bytes:
            self.timed[plan] = None
            return
        order = order_of(self.case, plan)
        peak = peak_bytes(self.case, plan, order)
        try:
            self.case.check_memory(plan, peak)
        except InfeasiblePlanError:
            self.timed[plan] = None
        else:
            sums = predict(self.case, plan, order)
            self.timed[plan] = Timed(plan, sums.makespan_ns, peak)


class LayoutSearch:
    """The candidates, and what is found. ``evaluations``: plans that were timed, or do not fit."""

    def __init__(
        self, candidates: Sequence[Candidate], pause: Callable[[str], None] = lambda _: None
    ) -> None:
        self.candidates = candidates
        self._pause = pause

    def run(self) -> None:
        """Find the KEPT best layouts, and the best without slices; time each kept one unsliced."""
        self._search(lambda one: one.coarse_ns, lambda: self.times_ns()[KEPT - 1])
        self._search(lambda one: one.unsliced, self._best_unsliced_ns)
        for one in self.kept():
            self._look(one, one.unsliced, FOREVER_NS)

    def _search(
        self, plans_of: Callable[[Candidate], Iterable[SlicePlan]], limit_ns: Callable[[], int]
    ) -> None:
        """Look at the candidates in the order of their quick bounds, until these are above the
        limit."""
        bounds = {one: one.coarse_bound_ns(plans_of(one)) for one in self.candidates}
        for one in sorted(self.candidates, key=bounds.__getitem__):
            if bounds[one] > limit_ns():
                return
            self._look(one, plans_of(one), limit_ns())

    def _look(self, one: Candidate, plans: Iterable[SlicePlan], limit_ns: int) -> None:
        """Time those of ``plans`` that may be faster than the best of them, and ``limit_ns``."""
        asked = set(plans)
        for plan, bound_ns in one.bounds_ns.items():
            if bound_ns > min(limit_ns, one.best_ns(asked)):
                return
            if plan in asked and plan not in one.timed:
                one.evaluate(plan)
                self._pause(f"{one.case.cluster.levels}: {plan.label}")

    def _best_unsliced_ns(self) -> int:
        return min((one.best_ns(one.unsliced) for one in self.candidates), default=FOREVER_NS)

    def times_ns(self) -> list[int]:
        """Return the best times of the candidates, least first, and FOREVER_NS for want of more."""
        return [*sorted(one.best_ns() for one in self.candidates), *[FOREVER_NS] * KEPT]

    def kept(self) -> list[Candidate]:
        """Return the best candidates, fastest first."""
        fits = [one for one in self.candidates if one.best() is not None]
        return sorted(fits, key=Candidate.best_ns)[:KEPT]

    def best_unsliced(self) -> Candidate | None:
        """Return the candidate that is fastest without slices."""
        found = min(self.candidates, key=lambda one: one.best_ns(one.unsliced), default=None)
        return found if found and found.best(found.unsliced) else None

    @property
    def evaluations(self) -> int:
        """Number of plans that were looked at with an engine."""
        return sum(len(one.timed) for one in self.candidates)
