"""A probe of the time that compute loses after waits, on CPUs: ranks sleep where they
would wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple

from domino_tune.measure.probes.compute import Message, Samples, medians_of
from domino_tune.measure.resume_law import Resumption, WaitStretch, resume_law
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.lanes.silent import PausingLane, silent_lanes
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.session import Session
from simulator.ops import Signature
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, DP, TP
from simulator.schedules import fixed_order

PAUSES_S: Final = (1e-3, 4e-3, 16e-3)
"""Lengths of the timed waits. Longer ones are assumed to cost as much as the longest."""


class PausedStep(NamedTuple):
    """A step whose ranks slept ``pause_s`` at each wait. ``ops``: for each compute op its
    signature, the time since the op before it, and its duration, µs. ``steady_us``: compute time of
    the last step without sleep.
    """

    pause_s: float
    ops: list[tuple[Signature, float, float]]
    steady_us: float


class IdleProbe:
    """Plays a plan without communication, and again with ranks that sleep wherever they would wait.

    The step without sleep shows the present speed of the machine, which drifts by more than waits
    cost. All waits of a step are equally long: after a short one, part of the cost of an earlier
    long one might still remain.
    """

    def __init__(self, session: Session, plan: SlicePlan) -> None:
        self.session = session
        self.lane, order = PausingLane(), fixed_order(plan)
        silent = silent_lanes(session.context.device)
        self.steady: Executor = session.executor(plan, order, silent)
        self.paused: Executor = session.executor(plan, order, {TP: self.lane, DP: self.lane})
        self.signatures = [op.signature for op in self.paused.ops if op.lane == COMPUTE]
        self.steps: list[PausedStep] = []

    def warm_up(self) -> None:
        """Play both steps once, unmeasured."""
        self._spans(self.steady)
        self._spans(self.paused)

    def measure(self) -> None:
        """Time a step without waits, then one with waits of each length."""
        steady_ns = sum(end - start for start, end in self._spans(self.steady))
        turned = len(self.steps) % 2  # so that drift affects each length alike
        for self.lane.pause_s in PAUSES_S[:: -1 if turned else 1]:
            spans = self._spans(self.paused)
            idle = [start - before for (_, before), (start, _) in pairwise(spans)]
            ops = [
                (signature, idle_ns / 1e3, (end - start) / 1e3)
                for signature, idle_ns, (start, end) in zip(
                    self.signatures, [0, *idle], spans, strict=True
                )
            ]
            self.steps.append(PausedStep(self.lane.pause_s, ops, steady_ns / 1e3))

    def _spans(self, executor: Executor) -> list[tuple[int, int]]:
        """Play a step; return start and end of its compute ops, ns."""
        self.session.context.barrier()
        timeline = executor.run_step(*self.session.batch).timeline
        return [(start, end) for _, start, end in timeline.lane(COMPUTE)]


def stretches_of(
    steps: Sequence[PausedStep], usual_us: Mapping[Signature, float]
) -> dict[float, list[WaitStretch]]:
    """Return the stretches of compute after pauses, by pause (s). ``usual_us``: usual durations,
    which are scaled to the speed of the step without sleep.
    """
    found: dict[float, list[WaitStretch]] = defaultdict(list)
    for step in steps:
        slower = step.steady_us / sum(usual_us[signature] for signature, _, _ in step.ops)
        pause_us = step.pause_s * 1e6
        waits = [at for at, (_, idle_us, _) in enumerate(step.ops) if idle_us >= pause_us]
        for at, end in pairwise((*waits, len(step.ops))):
            ops = tuple(
                Resumption(slower * usual_us[signature], took_us - slower * usual_us[signature])
                for signature, _, took_us in step.ops[at:end]
            )
            found[step.pause_s].append(WaitStretch(step.ops[at][1], ops))
    return found


def resume_message(context: RankContext, probe: IdleProbe, found: Samples) -> Message:
    """Return the law of all ranks' steps; ``found``: samples that give the usual duration of each
    op.
    """
    usual_us = {one: ns / 1e3 for one, ns in medians_of(found).items()}
    ranks = context.all_gather_objects(dict(stretches_of(probe.steps, usual_us)))
    together = {
        pause_s: [
            stretch
            for moment in zip_longest(*(rank.get(pause_s, ()) for rank in ranks))
            for stretch in moment
            if stretch is not None
        ]
        for pause_s in PAUSES_S
    }
    law = resume_law(together)
    return {
        "kind": "resume", "rows": [list(row) for row in law.rows],
        "recovery_us": law.recovery_us, "error": law.error, "samples": law.samples,
    }  # fmt: skip
