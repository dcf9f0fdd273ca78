"""What every rank does while a machine is profiled. Rank 0 reports, the parent keeps the file.

All ranks play the same run at the same time, since they share memory bandwidth and caches in
training too; what is reported is the mean of the ranks' medians.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from domino_tune.measure.probes.compute import (
    CollectiveProbe,
    PlanProbe,
    Samples,
    StepProbe,
    hand_over_us,
    lane_of,
    plan_messages,
    skew_message,
)
from domino_tune.measure.probes.contention import (
    ContentionProbe,
    contention_message,
    contention_probe,
)
from domino_tune.measure.probes.lanes import LanesProbe
from domino_tune.measure.probes.launch import LaunchProbe
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.session import Session
from simulator.ops import Collective
from simulator.plan import MEGATRON, SlicePlan

SETTLE_S: Final = 0.7
"""On CPUs, after a report: who keeps the file is at work on a rank's core for some of this time,
and would slow down whatever is timed first."""
MOST_USEFUL: Final = 3
"""Plans that are played before collectives and contention have their turn: where time runs out,
other plans can be interpolated, and nothing stands in for those two."""

SKEWED: Final = 2
"""Plans that are also played with their communication, for skew: ranks lose more to each other
where they wait for each other."""


class Probe(Protocol):
    """One thing to measure."""

    def warm_up(self) -> None:
        """Come to a steady state."""
        ...

    def measure(self) -> None:
        """Measure a little more."""
        ...


def profile(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Measure in rounds what the payload asks for, as long as it allows.

    Payload: cases (each with fields of the specs under model, workload and cluster, plans, and
    rounds: how often to play them), collectives, contention (a case's number, a plan, sizes, CTA
    counts; or None), seconds (the budget, or None). The first case brings collectives along, and
    what hangs on no signature: skew, and what the executor costs.
    """
    payload = context.all_gather_objects(payload)[0]  # under a launcher each rank has made its own
    budget = Budget(context, payload["seconds"])
    work = [_Case(context, case, number) for number, case in enumerate(payload["cases"])]
    budget.total = sum(case.rounds for case in work)
    complete = all(
        case.play(budget, payload["collectives"] if case.number == 0 else (), payload["contention"])
        for case in work
    )
    context.report({"kind": "end", "complete": complete})


class Budget:
    """Time and progress; rank 0's clock decides for all."""

    def __init__(self, context: RankContext, seconds: float | None) -> None:
        self.context = context
        self.seconds = seconds
        self.began = time.monotonic()
        self.done = 0
        self.total = 1

    def spent(self) -> bool:
        """Whether to stop, the same answer on all ranks."""
        over = self.seconds is not None and time.monotonic() - self.began > self.seconds
        return self.seconds is not None and self.context.all_gather_objects(over)[0]

    def round_done(self) -> None:
        """Tell how far all is."""
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
    """One model and batch: its probes exist only while it is played."""

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
        """All rounds, or as many as the budget allows; whether it was all."""
        if not self.rounds:
            return True
        if budget.spent():
            return False
        rivals = contention if contention and contention["case"] == self.number else None
        probed = self._probes([Collective(*fields) for fields in collectives], rivals)
        for number in range(self.rounds):
            cut_short = _round(budget, probed.in_turn, first=number == 0)
            self._report(probed)
            if cut_short:
                return False
            budget.round_done()
        return True

    def _probes(
        self, collectives: Sequence[Collective], contention: Mapping[str, Any] | None
    ) -> _Probed:
        session = Session.of(self.context, self.payload)
        session.exact_weights = self.context.device.type != "cuda"  # times do not hang on them
        plans = [SlicePlan(**plan) for plan in self.payload["plans"]]
        probed = _Probed(
            collectives=[
                CollectiveProbe(self.context, one, lane_of(one, session.cluster))
                for one in collectives
            ]
        )
        probed.plans = [PlanProbe(session, plan, probed.found) for plan in plans]
        if self.number == 0 and self.context.world_size > 1:
            probed.whole = [StepProbe(session, plan) for plan in plans[:SKEWED]]
        if self.context.device.type == "cuda" and self.number == 0:
            probed.launches = [LaunchProbe(session, plans[0] if plans else MEGATRON)]
        if contention is not None:
            probed.rivals = [
                contention_probe(session, SlicePlan(**contention["plan"]), int(size), int(ctas))
                for ctas in contention["ctas"]
                for size in contention["sizes"]
            ]
            if self.context.dp > 1:
                probed.both_lanes = [LanesProbe(session, int(contention["sizes"][0]))]
        return probed

    def _report(self, probed: _Probed) -> None:
        """Everything known so far; what a later round adds replaces it."""
        context = self.context
        usual = probed.plans[:MOST_USEFUL] if self.number == 0 else ()
        if probed.found:
            context.report(plan_messages(context, usual, probed.found))
        if any(probe.steps for probe in probed.whole):
            context.report(skew_message(probed.whole))
        for launch in probed.launches:
            if launch.cost_us:
                context.report(launch.message())
        timed = [collective for collective in probed.collectives if collective.spans_ns]
        for collective in timed:
            context.report(collective.message(hand_over_us(timed)))
        if any(rival.samples for rival in probed.rivals):
            context.report(contention_message(probed.rivals, probed.both_lanes))
        if context.device.type != "cuda":
            time.sleep(SETTLE_S)


@dataclass(kw_only=True)
class _Probed:
    """A case's probes."""

    collectives: Sequence[CollectiveProbe]
    plans: Sequence[PlanProbe] = ()
    whole: Sequence[StepProbe] = ()
    launches: Sequence[LaunchProbe] = ()
    rivals: Sequence[ContentionProbe] = ()
    both_lanes: Sequence[LanesProbe] = ()
    found: Samples = field(default_factory=lambda: defaultdict(list))

    @property
    def in_turn(self) -> list[Probe]:
        """All of them, most useful first."""
        first, rest = self.plans[:MOST_USEFUL], self.plans[MOST_USEFUL:]
        return [
            *first, *self.whole, *self.launches, *self.collectives, *self.rivals,
            *self.both_lanes, *rest,
        ]  # fmt: skip


def _round(budget: Budget, probes: Sequence[Probe], *, first: bool) -> bool:
    """Each probe once; whether the budget ended before all had their turn."""
    for index, probe in enumerate(probes):
        if budget.spent():
            return True
        if first or index == 0:  # ranks have just been idle
            probe.warm_up()
        probe.measure()
    return False
