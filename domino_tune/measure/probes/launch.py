"""Costs of launches: the host's time by op."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

import torch

from domino_tune.runtime.clock import HostClock
from domino_tune.runtime.lanes.call import all_reduce
from domino_tune.runtime.lanes.lane import Lane
from domino_tune.runtime.lanes.silent import silent_lanes
from domino_tune.runtime.session import Session
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, TP

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
