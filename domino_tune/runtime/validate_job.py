"""The job of every rank while plans are validated: play the plans in turn, round after round.

Plans alternate inside one run, so that a disturbance of the machine affects them all alike. Weights
are constant (learning rate 0) and every plan of a round draws the same dropout masks. So no plan
changes another's numbers, no_comm with its wrong gradients included, and all others must have the
same loss and gradient norm.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final

import torch

from domino_tune.runtime.clock import WholeClock
from domino_tune.runtime.executor import (
    EAGER_STEPS,
    CapturedExecutor,
    Executor,
    StepResult,
    step_peak_bytes,
    whole_ns,
)
from domino_tune.runtime.lanes.streams import EmulatedLanes, untimed
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.ops import Training
from domino_tune.runtime.plan_runs import round_order
from domino_tune.runtime.session import Session
from domino_tune.store.plans import order_from_json
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE, Timeline

WARM_UP: Final = 2
MOST_SPANS: Final = 100
"""Rounds whose spans are stored; they stand for all rounds of longer runs."""
SPAN_ROUNDS: Final = 10
"""Extra rounds for spans, where the timed steps have none."""
_ALLOCATION: Final = ("can't allocate memory", "not enough memory", "CUDA out of memory")

Spans = tuple[tuple[int, ...], tuple[int, ...]]


class PlanOutOfMemory(Exception):
    """A plan did not fit; the parent reads its index from this error and restarts without it."""


@dataclass(kw_only=True)
class TimedPlan:
    """One plan on this rank, with its measurements.

    On a GPU ``timed`` plays the timed steps, as a whole and maybe from a graph, and ``executor``
    plays further ones whose ops are timed one by one. On CPU one executor does both.
    """

    index: int
    executor: Executor
    timed: Executor | CapturedExecutor
    peak_bytes: int = 0
    makespans_ns: list[int] = field(default_factory=list)
    slowest: list[int] = field(default_factory=list)
    spans: list[Spans] = field(default_factory=list)
    layers: list[list[float]] = field(default_factory=list)

    @property
    def has_span_steps(self) -> bool:
        """Return whether spans come from other steps than the timed ones."""
        return self.timed is not self.executor

    def play(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[StepResult, int]:
        """Play one timed step; return its result and duration, ns."""
        result = self.timed.run_step(*batch)
        if isinstance(self.timed, CapturedExecutor):
            return result, self.timed.elapsed_ns
        return result, whole_ns(self.timed, result)

    def add_spans(self, makespans: list[int], timeline: Timeline) -> None:
        """Add a step timed op by op: all ranks' makespans, ns, and this rank's spans."""
        if len(self.spans) < MOST_SPANS:
            self.makespans_ns.append(max(makespans))
            self.slowest.append(makespans.index(max(makespans)))
            self.spans.append((timeline.start_ns, timeline.end_ns))


def validate(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Play every plan ``rounds`` times. Payload: model, workload, cluster, plans (each with its
    index, plan and order), rounds, and for a single rank paces. Rank 0 reports which plan begins,
    until steps are timed; then every step's makespan (the slowest rank's); at the end each plan's
    median step, and whether a CUDA graph of it was captured."""
    session = Session.of(context, payload)
    session.training = Training(learning_rate=0.0)
    session.exact_weights = context.device.type != "cuda"  # else large models take minutes to draw
    paces = payload.get("paces")
    emulated = EmulatedLanes(paces, context.device) if paces is not None else None
    plans = _timed_plans(session, payload, emulated)
    for plan in plans:
        context.report({"kind": "begin", "plan": plan.index})
        with _memory_of(plan):
            plan.peak_bytes = step_peak_bytes(plan.executor, session.batch)
        context.beat()
        plan.layers = _layers(session, plan)
    for plan in plans:
        _capture(session, plan)
    rounds = int(payload["rounds"])
    for step in range(1, WARM_UP + rounds):
        for place in round_order(range(len(plans)), step - WARM_UP):
            _take_step(session, plans[place], step)
    for step in range(1, WARM_UP + min(rounds, SPAN_ROUNDS)):
        for plan in plans:
            _take_spans(session, plan, step)
    for plan in plans:
        _report_end(context, plan)
    if emulated:
        emulated.close()


def _timed_plans(
    session: Session, payload: Mapping[str, Any], emulated: EmulatedLanes | None
) -> list[TimedPlan]:
    """Return the plans, ready to play. Graphs share memory: only one is replayed at a time."""
    on_device = session.context.device.type == "cuda"
    as_graph = on_device and session.cluster.cuda_graph
    pool = torch.cuda.graph_pool_handle() if as_graph else None
    plans = []
    for entry in payload["plans"]:
        plan, order = SlicePlan(**entry["plan"]), order_from_json(entry["order"])
        lanes_of = emulated.of if emulated else session.context.lanes_for
        lanes = lanes_of(plan.comm_ctas)
        executor = session.executor(plan, order, lanes)
        whole = executor
        if on_device:
            whole = session.executor(plan, order, untimed(lanes), WholeClock())
        timed = CapturedExecutor(whole, pool) if as_graph else whole
        plans.append(TimedPlan(index=entry["index"], executor=executor, timed=timed))
    return plans


def _layers(session: Session, plan: TimedPlan) -> list[list[float]]:
    """Return norm and sum of each layer's gradients, of a step of its own on the same batch."""
    state = plan.executor.state
    session.parameters.steps, state.watches_layers = 0, True
    session.context.barrier()
    with _memory_of(plan):
        plan.executor.run_step(*session.batch)
    state.watches_layers = False
    found: list[list[float]] = state.saved.pop("layers").tolist()
    return found


def _capture(session: Session, plan: TimedPlan) -> None:
    """Play until the plan's graph is captured, if it is to have one."""
    if not isinstance(plan.timed, CapturedExecutor):
        return
    session.context.report({"kind": "begin", "plan": plan.index})
    for _ in range(EAGER_STEPS + 1):
        session.parameters.steps = 0
        session.context.barrier()
        with _memory_of(plan):
            plan.play(session.batch)


@contextmanager
def _memory_of(plan: TimedPlan) -> Iterator[None]:
    """Raise PlanOutOfMemory where memory runs out. This rank then ends, and the launch with it: the
    others wait in a collective and cannot be informed."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not known and not any(text in str(error) for text in _ALLOCATION):
            raise
        raise PlanOutOfMemory(f"plan {plan.index}: {error}") from error


def _take_step(session: Session, plan: TimedPlan, step: int) -> None:
    """Play one step and report it; steps below WARM_UP are not measured."""
    context = session.context
    session.parameters.steps = step
    if step < WARM_UP:
        context.report({"kind": "begin", "plan": plan.index})
    context.barrier()
    with _memory_of(plan):
        result, makespan_ns = plan.play(session.batch)
    makespans = context.all_gather_objects(makespan_ns)
    if step < WARM_UP:
        return
    if not plan.has_span_steps:
        plan.add_spans(makespans, result.timeline)
    context.report(
        {
            "kind": "step",
            "plan": plan.index,
            "makespan_ns": max(makespans),
            "loss": result.loss,
            "grad_norm": result.grad_norm,
        }
    )


def _take_spans(session: Session, plan: TimedPlan, step: int) -> None:
    """Play one more step for its ops' spans, where the timed steps have none."""
    if not plan.has_span_steps:
        return
    context = session.context
    session.parameters.steps = step
    context.report({"kind": "begin", "plan": plan.index})
    context.barrier()
    timeline = plan.executor.run_step(*session.batch).timeline
    makespans = context.all_gather_objects(timeline.makespan_ns)
    if step >= WARM_UP:
        plan.add_spans(makespans, timeline)


def _report_end(context: RankContext, plan: TimedPlan) -> None:
    """Report the median step on its slowest rank, and each op's median duration on the rank that
    computes longest: profiles hold such durations, and the step depends on that rank."""
    ranked = sorted(range(len(plan.spans)), key=plan.makespans_ns.__getitem__)
    median = ranked[(len(ranked) - 1) // 2]
    mine = plan.spans[median] if context.rank == plan.slowest[median] else None
    found = context.all_gather_objects((mine, _usual_ns(plan), plan.peak_bytes, plan.layers))
    start_ns, end_ns = next(spans for spans, *_ in found if spans is not None)
    computing = [op.lane == COMPUTE for op in plan.executor.ops]
    usual = max((medians for _, medians, *_ in found), key=lambda m: sum(compress(m, computing)))
    context.report(
        {
            "kind": "end",
            "plan": plan.index,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "typical_ns": usual,
            "peak_bytes": max(peak for _, _, peak, _ in found),
            "layers": [layers for *_, layers in found],
            **_graph_message(context, plan),
        }
    )


def _graph_message(context: RankContext, plan: TimedPlan) -> dict[str, Any]:
    """Return whether all ranks replayed a graph, and why not; empty where none was requested."""
    if not isinstance(plan.timed, CapturedExecutor):
        return {}
    reasons = context.all_gather_objects(plan.timed.why_not)
    return {"captured": not any(reasons), "why_not_captured": max(reasons)}


def _usual_ns(plan: TimedPlan) -> list[float]:
    """Return the median duration of each op over this rank's rounds, ns."""
    durations = ([end - start for start, end in zip(*spans, strict=True)] for spans in plan.spans)
    return [statistics.median(times) for times in zip(*durations, strict=True)]
