"""The job of every rank while a machine is profiled. Rank 0 reports; the parent saves the file.

All ranks play the same at the same time, as they share memory bandwidth and caches in training
too. The reported figures are means of the ranks' medians.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from domino_tune.measure.gpu import AdmissionProbe
from domino_tune.measure.gpu.loads import measure_loads
from domino_tune.measure.probes.compute import (
    CollectiveProbe,
    PlanProbe,
    Samples,
    StepProbe,
    hand_over_us,
    lane_of,
    plan_messages,
    skew_message,
    step_excess,
)
from domino_tune.measure.probes.contention import (
    ConcurrentProbe,
    LanesProbe,
    contention_message,
    contention_probe,
)
from domino_tune.measure.probes.hosts import IdleProbe, LaunchProbe, resume_message
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.session import Session
from simulator.ops import Collective
from simulator.plan import MEGATRON, SlicePlan

SETTLE_S: Final = 0.7
"""Pause after a report, on CPUs: the parent saves the file on a rank's core in some of this time,
which would slow the next measurement."""
MOST_USEFUL: Final = 3
"""Plans that are played before collectives and contention: where time runs out, other plans can be
interpolated, but collectives and contention cannot."""


class Probe(Protocol):
    """One thing to measure."""

    def warm_up(self) -> None:
        """Reach a steady state."""
        ...

    def measure(self) -> None:
        """Measure a little more."""
        ...


def profile(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Measure in rounds what the payload asks for, within its budget.

    Payload: cases (each with fields of the specs under model, workload and cluster, plans, and
    rounds: how often to play them), collectives, contention (a case's number, a plan, messages;
    or None), loads (of a GPU's power, after all cases), seconds (the budget, or None). With the
    first case run the collectives and what depends on no signature: skew, waits and the executor's
    own cost.
    """
    payload = context.all_gather_objects(payload)[0]  # under a launcher each rank made its own
    budget = Budget(context, payload["seconds"])
    work = [_Case(context, case, number) for number, case in enumerate(payload["cases"])]
    budget.total = sum(case.rounds for case in work)
    complete = all(
        case.play(budget, payload["collectives"] if case.number == 0 else (), payload["contention"])
        for case in work
    )
    complete = complete and measure_loads(context, payload["loads"], budget.spent)
    context.report({"kind": "end", "complete": complete})


class Budget:
    """Time and progress; rank 0's clock decides for all ranks."""

    def __init__(self, context: RankContext, seconds: float | None) -> None:
        self.context = context
        self.seconds = seconds
        self.began = time.monotonic()
        self.done = 0
        self.total = 1

    def spent(self) -> bool:
        """Return whether to stop; the answer is the same on all ranks."""
        over = self.seconds is not None and time.monotonic() - self.began > self.seconds
        return self.seconds is not None and self.context.all_gather_objects(over)[0]

    def round_done(self) -> None:
        """Report the progress over all cases."""
        self.done += 1
        elapsed = time.monotonic() - self.began
        remaining = elapsed / self.done * (self.total - self.done)
        if self.seconds is not None:
            remaining = min(remaining, max(0.0, self.seconds - elapsed))
        self.context.report(
            {
                "kind": "progress",
                "round": self.done,
                "rounds": self.total,
                "elapsed_s": elapsed,
                "remaining_s": remaining,
            }
        )


class _Case:
    """One model and batch; its probes exist only while it is played."""

    def __init__(self, context: RankContext, payload: Mapping[str, Any], number: int) -> None:
        self.context = context
        self.payload = payload
        self.number = number
        self.rounds = int(payload["rounds"])

    def play(
        self,
        budget: Budget,
        collectives: Sequence[Sequence[Any]],
        contention: Mapping[str, Any] | None,
    ) -> bool:
        """Play all rounds, or those within the budget. Return whether all were played."""
        if not self.rounds:
            return True
        if budget.spent():
            return False
        contended = contention if contention and contention["case"] == self.number else None
        probes = self._probes([Collective(*fields) for fields in collectives], contended)
        for number in range(self.rounds):
            cut_short = _round(budget, probes.ordered, first=number == 0)
            self._report(probes)
            if cut_short:
                return False
            budget.round_done()
        return True

    def _probes(
        self, collectives: Sequence[Collective], contention: Mapping[str, Any] | None
    ) -> _Probes:
        session = Session.of(self.context, self.payload)
        session.exact_weights = self.context.device.type != "cuda"  # times do not depend on them
        plans = [SlicePlan(**plan) for plan in self.payload["plans"]]
        probes = _Probes(
            collectives=[
                CollectiveProbe(self.context, one, lane_of(one, session.cluster))
                for one in collectives
            ]
        )
        probes.plans = [PlanProbe(session, plan, probes.found) for plan in plans]
        if self.number == 0 and self.context.world_size > 1:
            probes.steps = [StepProbe(session, plan) for plan in _skewed(plans, contention)]
            if plans and self.context.device.type != "cuda":  # a stream does not sleep
                probes.idle = [IdleProbe(session, plans[0])]
        if self.context.device.type == "cuda" and self.number == 0:
            probes.launches = [LaunchProbe(session, plans[0] if plans else MEGATRON)]
        if contention is not None:
            messages = [Collective(*message) for message in contention["messages"]]
            probes.contention = [
                contention_probe(session, SlicePlan(**contention["plan"]), message)
                for message in messages
            ]
            if self.context.device.type == "cuda":
                probes.admission = [AdmissionProbe(self.context)]
            if self.context.dp > 1 and self.context.tp > 1:
                probes.both_lanes = [LanesProbe(session, messages[0].size_bytes)]
        return probes

    def _report(self, probes: _Probes) -> None:
        """Report all results so far; those of a later round replace them."""
        context = self.context
        usual = probes.plans[:MOST_USEFUL] if self.number == 0 else ()
        if probes.found:
            context.report(plan_messages(context, usual, probes.found))
        if any(probe.steps for probe in probes.steps):
            excess = step_excess(context, probes.plans, probes.found)
            context.report(skew_message(probes.steps, excess))
            for idle in probes.idle:
                if idle.steps:
                    context.report(resume_message(context, idle, probes.found))
        for launch in probes.launches:
            if launch.cost_us:
                context.report(launch.message())
        timed = [collective for collective in probes.collectives if collective.spans_ns]
        for collective in timed:
            context.report(collective.message(hand_over_us(timed)))
        if any(probe.samples for probe in probes.contention):
            context.report(
                contention_message(probes.contention, probes.both_lanes, probes.admission)
            )
        if context.device.type != "cuda":
            time.sleep(SETTLE_S)


def _skewed(plans: list[SlicePlan], contention: Mapping[str, Any] | None) -> list[SlicePlan]:
    """Return the plans that are also played with their communication, for skew: the first one,
    where ranks wait for each other, and a sliced one, which computes beside its collectives."""
    sliced = [SlicePlan(**contention["plan"])] if contention else plans[1:2]
    return [*plans[:1], *sliced]


@dataclass(kw_only=True)
class _Probes:
    """A case's probes."""

    collectives: Sequence[CollectiveProbe]
    plans: Sequence[PlanProbe] = ()
    steps: Sequence[StepProbe] = ()
    idle: Sequence[IdleProbe] = ()
    launches: Sequence[LaunchProbe] = ()
    contention: Sequence[ConcurrentProbe] = ()
    both_lanes: Sequence[LanesProbe] = ()
    admission: Sequence[AdmissionProbe] = ()
    found: Samples = field(default_factory=lambda: defaultdict(list))

    @property
    def ordered(self) -> list[Probe]:
        """Return all probes, most useful first."""
        first, rest = self.plans[:MOST_USEFUL], self.plans[MOST_USEFUL:]
        return [
            *first, *self.steps, *self.idle, *self.launches, *self.collectives, *self.contention,
            *self.both_lanes, *self.admission, *rest,
        ]  # fmt: skip


def _round(budget: Budget, probes: Sequence[Probe], *, first: bool) -> bool:
    """Measure with each probe once. Return whether the budget ended before that."""
    for index, probe in enumerate(probes):
        if budget.spent():
            return True
        if first or index == 0:  # ranks were idle before
            probe.warm_up()
        probe.measure()
    return False
