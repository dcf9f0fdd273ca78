"""Plays a plan on a single rank in every way of launching, for the breakdown of its iteration."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Final

import torch

from domino_tune.base.errors import RunError
from domino_tune.measure.power_law import COMPUTE as FAMILIES
from domino_tune.runtime.clock import (
    Clock,
    HostClock,
    WholeClock,
    empty_ns,
    probing_clock,
    was_late,
)
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.graphs import EAGER_STEPS, CapturedExecutor, whole_ns
from domino_tune.runtime.session import Session
from lab.gpu.step_breakdown import StepBreakdown
from simulator.ops import Attention, Signature
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE

WARM_UP: Final = 2


def break_down(session: Session, plan: SlicePlan, steps: int) -> StepBreakdown:
    """Play ``plan`` in every way, ``steps`` times each; return its breakdown.

    Raise RunError where the host was too slow.
    """
    eager = session.executor(plan, None, clock=whole_clock(session.context.device))
    eager_us = _median_us(eager, session, steps)
    graph_us, why_no_graph = _graph_us(session, plan, steps)
    return StepBreakdown(
        label=plan.label,
        by_kind_us=_by_kind_us(session, plan, steps),
        eager_us=eager_us,
        graph_us=graph_us,
        why_no_graph=why_no_graph,
        flops=sum(_model_flops(op.signature) for op in eager.ops),
    )


def _model_flops(op: Signature) -> int:
    """Return an op's FLOPs without the scores that backward's attention kernel computes again."""
    again = isinstance(op, Attention) and op.direction == "backward"
    return op.flops * 4 // 5 if again else op.flops


def whole_clock(device: torch.device) -> Clock:
    """Return a clock of whole steps."""
    return WholeClock() if device.type == "cuda" else HostClock()


def _by_kind_us(session: Session, plan: SlicePlan, steps: int) -> dict[str, float]:
    """Return medians of steps in which the host was ahead; play at most twice as many."""
    device = session.context.device
    clock, empty = probing_clock(device), empty_ns(device)
    executor = session.executor(plan, None, clock=clock)
    found: dict[str, list[float]] = defaultdict(list)
    for step in range(WARM_UP + 2 * steps):
        timeline = executor.run_step(*session.batch).timeline
        session.context.beat()
        if step < WARM_UP or was_late(clock):
            continue
        sums = dict.fromkeys(FAMILIES, 0)
        for op, start, end in timeline.lane(COMPUTE):
            sums[op.signature.kind] += max(0, end - start - empty)
        for kind, total_ns in sums.items():
            found[kind].append(total_ns / 1e3)
        if len(found["gemm"]) == steps:
            return {kind: statistics.median(times) for kind, times in found.items()}
    raise RunError(
        f"Only {len(found['gemm'])} of {2 * steps} steps of {plan.label} were launched in time, "
        f"{steps} are needed: is the host busy with something else?"
    )


def _graph_us(session: Session, plan: SlicePlan, steps: int) -> tuple[float | None, str]:
    """Return the time of a captured step (µs) and "", or None and the reason."""
    device = session.context.device
    if device.type != "cuda":
        return None, f"a {device.type} has no CUDA graphs"
    captured = CapturedExecutor(session.executor(plan, None, clock=whole_clock(device)))
    for _ in range(EAGER_STEPS):
        captured.run_step(*session.batch)
    found = _median_us(captured, session, steps)
    return (found, "") if captured.is_captured else (None, captured.why_not)


def _median_us(executor: Executor | CapturedExecutor, session: Session, steps: int) -> float:
    times = []
    for step in range(WARM_UP + steps):
        result = executor.run_step(*session.batch)
        session.context.beat()
        if step < WARM_UP:
            continue
        if isinstance(executor, CapturedExecutor):
            times.append(executor.elapsed_ns)
        else:
            times.append(whole_ns(executor, result))
    return statistics.median(times) / 1e3
