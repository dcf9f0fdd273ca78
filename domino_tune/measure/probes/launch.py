"""Costs of launches on CUDA: host time by op, and a step eager, with a head start, as a graph."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

import torch

from domino_tune.runtime.clock import DeviceClock, HostClock, WholeClock, empty_span_ns
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.graphs import CapturedExecutor
from domino_tune.runtime.head_start import HeadStart
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


def launch_row(session: Session, plan: SlicePlan) -> dict[str, Any]:
    """Return one plan's times without communication, launched in every way; µs, medians."""
    host_us, by_kind, by_role = host_costs(session, plan)
    spans_us, late = _per_op(session, plan)
    row: dict[str, Any] = {
        "model": session.model.name,
        "layers": session.model.num_hidden_layers,
        "tp": session.cluster.tp,
        "batch": session.workload.micro_batch_size,
        "seq": session.workload.seq_length,
        "plan": plan.label,
        "ops": len(session.executor(plan, None).ops),
        "host_us": host_us,
        "cost_us": by_kind,
        "cost_us_by_role": by_role,
        "eager_us": _whole(session, plan, None),
        "ahead_us": _whole(session, plan, HeadStart(spin_ns=40_000_000)),
        "spans_us": spans_us,
        "late_steps": late,
        "empty_span_us": empty_span_ns() / 1e3,
    }
    return {**row, **_graph(session, plan)}


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


def _whole(session: Session, plan: SlicePlan, head_start: HeadStart | None) -> float:
    """Return the device's µs of a step between two events, with or without a head start."""
    clock = WholeClock(head_start)
    executor = session.executor(plan, None, clock=clock)
    return statistics.median(_timed(session, executor, clock)) / 1e3


def _timed(session: Session, executor: Executor, clock: DeviceClock) -> list[int]:
    found = []
    for step in range(WARM_UP + STEPS):
        executor.run_step(*session.batch)
        if step >= WARM_UP:
            found.append(clock.elapsed_ns)
    return found


def _per_op(session: Session, plan: SlicePlan) -> tuple[float, int]:
    """Return the sum of the ops' spans, µs, without the empty span of each; and the late steps."""
    clock = DeviceClock(HeadStart())
    executor = session.executor(plan, None, clock=clock)
    empty, sums, late = empty_span_ns(), [], 0
    for step in range(WARM_UP + STEPS):
        timeline = executor.run_step(*session.batch).timeline
        if step < WARM_UP:
            continue
        late += clock.was_late
        spans = zip(executor.ops, timeline.start_ns, timeline.end_ns, strict=True)
        sums.append(sum(end - start - empty for op, start, end in spans if op.lane == COMPUTE))
    return statistics.median(sums) / 1e3, late


def _graph(session: Session, plan: SlicePlan) -> dict[str, Any]:
    """Return a captured step's times on device and host, µs, or why it could not be captured."""
    captured = CapturedExecutor(session.executor(plan, None))
    device, host = [], []
    for step in range(WARM_UP + STEPS):
        begin = time.perf_counter_ns()
        captured.run_step(*session.batch)
        if step >= WARM_UP:
            device.append(captured.elapsed_ns)
            host.append(time.perf_counter_ns() - begin)
    if captured.why_not:
        return {"graph_why_not": captured.why_not}
    return {
        "graph_us": statistics.median(device) / 1e3,
        "graph_step_host_us": statistics.median(host) / 1e3,
        "graph_launch_us": captured.launch_ns / 1e3,
    }
