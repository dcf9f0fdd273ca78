"""Probes of hosts: costs of launches, and the time that compute loses after waits."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any, Final, NamedTuple

import torch

from domino_tune.measure.laws import Resumption, WaitStretch, resume_law
from domino_tune.measure.probes.compute import Message, Samples, medians_of
from domino_tune.runtime.clock import HostClock
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.lanes.groups import PausingLane, silent_lanes
from domino_tune.runtime.lanes.lane import Lane, all_reduce
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.session import Session
from simulator.ops import Signature
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, DP, TP
from simulator.schedules import fixed_order

WARM_UP = 3
STEPS = 10
ISSUES = 50
"""Collectives in flight at once: few enough for the device's queue."""


def host_costs(
    session: Session, plan: SlicePlan
) -> tuple[float, dict[str, float], dict[str, float]]:
    """Return the host's µs to issue a step, and an op by kind and role; the device runs later."""
    executor = session.executor(plan, None, silent_lanes(torch.device("cpu")), HostClock())
    kinds: dict[str, list[int]] = defaultdict(list)
    roles: dict[str, list[int]] = defaultdict(list)
    steps = []
    for step in range(WARM_UP + STEPS):
        timeline = executor.run_step(*session.batch).timeline
        if session.context.device.type == "cuda":
            torch.cuda.synchronize()
        session.context.beat()
        if step < WARM_UP:
            continue
        steps.append(timeline.makespan_ns)
        for op, start, end in zip(executor.ops, timeline.start_ns, timeline.end_ns, strict=True):
            if op.lane == COMPUTE:
                kinds[op.signature.kind].append(end - start)
                roles[op.role].append(end - start)
    return statistics.median(steps) / 1e3, _medians_us(kinds), _medians_us(roles)


def mean_costs_us(session: Session, plan: SlicePlan) -> dict[str, float]:
    """Return the host's mean µs to issue a compute op, by kind. Each op counts with its role's
    median plus an equal share of the executor's time between ops: a step's ops add up to the step.
    """
    step_us, _, by_role = host_costs(session, plan)
    kinds: dict[str, list[float]] = defaultdict(list)
    for op in session.executor(plan, None).ops:
        if op.lane == COMPUTE:
            kinds[op.signature.kind].append(by_role[op.role])
    count = sum(map(len, kinds.values()))
    between_us = max(0.0, step_us - sum(map(sum, kinds.values()))) / count
    return {kind: statistics.fmean(costs) + between_us for kind, costs in kinds.items()}


def issue_us(lane: Lane, device: torch.device) -> float:
    """Return the host's µs to hand a small all-reduce to a lane and make compute wait for it. All
    ranks of the lane's group must call this together."""
    tensor = torch.zeros(1024, device=device)
    times = []
    for _ in range(WARM_UP + ISSUES):
        begun = time.perf_counter_ns()
        lane.issue("launch", all_reduce(tensor)).wait()
        times.append(time.perf_counter_ns() - begun)
    torch.cuda.synchronize()
    return statistics.median(times[WARM_UP:]) / 1e3


class LaunchProbe:
    """Costs of launches on the hosts of all ranks, by kind of op; measured in the first round."""

    def __init__(self, session: Session, plan: SlicePlan) -> None:
        self.session = session
        self.plan = plan
        self.cost_us: dict[str, float] = {}

    def warm_up(self) -> None:
        """Do nothing: measuring begins with unmeasured steps."""

    def measure(self) -> None:
        """Measure all costs, once."""
        if self.cost_us:
            return
        context = self.session.context
        context.barrier()
        _, mine, _ = host_costs(self.session, self.plan)
        mine["collective"] = issue_us(context.lanes[TP], context.device)
        context.beat()
        ranks = context.all_gather_objects(mine)
        self.cost_us = {kind: statistics.fmean(rank[kind] for rank in ranks) for kind in mine}

    def message(self) -> dict[str, Any]:
        """Return the mean over ranks, µs."""
        return {"kind": "launch", "cost_us": self.cost_us}


def _medians_us(found: dict[str, list[int]]) -> dict[str, float]:
    return {name: round(statistics.median(times) / 1e3, 3) for name, times in found.items()}


# A probe of the time that compute loses after waits, on CPUs --------------------------------------
# Ranks sleep where they would wait.

PAUSES_S: Final = (1e-3, 4e-3, 16e-3)
"""Lengths of the timed waits. Longer ones are assumed to cost as much as the longest."""


class PausedStep(NamedTuple):
    """A step whose ranks slept ``pause_s`` at each wait. ``ops``: for each compute op its
    signature, the time since the op before it, and its duration, µs. ``steady_us``: compute time of
    the last step without sleep."""

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
    which are scaled to the speed of the step without sleep."""
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
    op."""
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
