"""Plays a plan on a lone rank in every way there is, for what its iteration is made of."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Final

from domino_tune.measure.spent import KINDS, Spent
from domino_tune.runtime.clock import WholeClock, empty_ns, probing_clock, was_late
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.graphs import EAGER_STEPS, CapturedExecutor, whole_ns
from domino_tune.runtime.session import Session
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE

WARM_UP: Final = 2


def spent(session: Session, plan: SlicePlan, steps: int) -> Spent:
    """Play ``plan`` in every way, ``steps`` times each."""
    executor = session.executor(plan, None)
    return Spent(
        label=plan.label,
        by_kind_us=_by_kind_us(session, plan, steps),
        eager_us=_eager_us(session, plan, steps),
        graph_us=_graph_us(session, plan, steps),
        flops=sum(op.signature.flops for op in executor.ops),
    )


def _by_kind_us(session: Session, plan: SlicePlan, steps: int) -> dict[str, float]:
    device = session.context.device
    clock, empty = probing_clock(device), empty_ns(device)
    executor = session.executor(plan, None, clock=clock)
    found: dict[str, list[float]] = defaultdict(list)
    for step in range(WARM_UP + 2 * steps):
        timeline = executor.run_step(*session.batch).timeline
        session.context.beat()
        if step < WARM_UP or was_late(clock):
            continue
        sums = dict.fromkeys(KINDS, 0)
        for op, start, end in timeline.lane(COMPUTE):
            sums[op.signature.kind] += max(0, end - start - empty)
        for kind, total_ns in sums.items():
            found[kind].append(total_ns / 1e3)
        if len(found["gemm"]) == steps:
            break
    return {kind: statistics.median(times) for kind, times in found.items()}


def _eager_us(session: Session, plan: SlicePlan, steps: int) -> float:
    on_device = session.context.device.type == "cuda"
    executor = session.executor(plan, None, clock=WholeClock() if on_device else None)
    return _median_us(executor, session, steps)


def _graph_us(session: Session, plan: SlicePlan, steps: int) -> float | None:
    if session.context.device.type != "cuda":
        return None
    captured = CapturedExecutor(session.executor(plan, None, clock=WholeClock()))
    times = []
    for step in range(EAGER_STEPS + WARM_UP + steps):
        captured.run_step(*session.batch)
        session.context.beat()
        if step >= EAGER_STEPS + WARM_UP:
            times.append(captured.elapsed_ns)
    return statistics.median(times) / 1e3 if captured.is_captured else None


def _median_us(executor: Executor, session: Session, steps: int) -> float:
    times = []
    for step in range(WARM_UP + steps):
        result = executor.run_step(*session.batch)
        session.context.beat()
        if step >= WARM_UP:
            times.append(whole_ns(executor, result))
    return statistics.median(times) / 1e3
