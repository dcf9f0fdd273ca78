"""What every rank does while plans are validated: play them in turn, again and again.

Plans alternate inside one run, so that what disturbs the machine disturbs them all alike. Weights
stand still (learning rate 0) and every plan of a round draws the same dropout masks: so no plan
spoils another's numbers, no_comm with its wrong gradients included, and all others must give one
loss and one gradient norm.
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
from domino_tune.runtime.executor import Executor, StepResult
from domino_tune.runtime.graphs import EAGER_STEPS, CapturedExecutor, whole_ns
from domino_tune.runtime.lanes.emulated_set import EmulatedLanes
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.live_memory import step_peak_bytes
from domino_tune.runtime.ops.state import Training
from domino_tune.runtime.rounds import turns_of
from domino_tune.runtime.session import Session
from domino_tune.store.plans import order_from_json
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE
from simulator.timeline import Timeline

WARM_UP: Final = 2
KEPT: Final = 100
"""Rounds whose spans are kept; longer runs are judged op by op by these."""
SPANS: Final = 10
"""Rounds that are played for spans alone, where the others have none."""
_ALLOCATION: Final = ("can't allocate memory", "not enough memory", "CUDA out of memory")

Spans = tuple[tuple[int, ...], tuple[int, ...]]


class PlanOutOfMemory(Exception):
    """A plan did not fit; the parent reads its index from this error and starts without it."""


@dataclass(kw_only=True)
class Turn:
    """One plan on this rank, and what its steps took.

    On a GPU ``timed`` plays the steps that count, as a whole and maybe from a graph, and
    ``executor`` some more whose ops are timed one by one; on CPU one executor does both.
    """

    index: int
    executor: Executor
    timed: Executor | CapturedExecutor
    peak_bytes: int = 0
    makespans_ns: list[int] = field(default_factory=list)
    slowest: list[int] = field(default_factory=list)
    spans: list[Spans] = field(default_factory=list)

    @property
    def apart(self) -> bool:
        """Whether spans are of other steps than the ones that count."""
        return self.timed is not self.executor

    def play(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[StepResult, int]:
        """One step that counts, and what it took, ns."""
        result = self.timed.run_step(*batch)
        if isinstance(self.timed, CapturedExecutor):
            return result, self.timed.elapsed_ns
        return result, whole_ns(self.timed, result)

    def keep(self, makespans: list[int], timeline: Timeline) -> None:
        """A step that was timed op by op: all ranks' makespans, this one's spans."""
        if len(self.spans) < KEPT:
            self.makespans_ns.append(max(makespans))
            self.slowest.append(makespans.index(max(makespans)))
            self.spans.append((timeline.start_ns, timeline.end_ns))


def validate(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Play every plan ``rounds`` times. Payload: model, workload, cluster, plans (each with its
    index, plan and order), rounds, and for a lone rank paces. Rank 0 reports which plan begins,
    until steps are timed, then every step's makespan (the slowest rank's) and at the end each
    plan's median step, and whether a CUDA graph of it could be captured."""
    session = Session.of(context, payload)
    session.training = Training(learning_rate=0.0)
    session.exact_weights = context.device.type != "cuda"  # large models take minutes to draw
    paces = payload.get("paces")
    emulated = EmulatedLanes(paces, context.device) if paces is not None else None
    turns = _turns(session, payload, emulated)
    for turn in turns:
        context.report({"kind": "begin", "plan": turn.index})
        with _memory_of(turn):
            turn.peak_bytes = step_peak_bytes(turn.executor, session.batch)
        context.beat()
    for turn in turns:
        _settle(session, turn)
    rounds = int(payload["rounds"])
    for step in range(1, WARM_UP + rounds):
        for place in turns_of(range(len(turns)), step - WARM_UP):
            _take_turn(session, turns[place], step)
    for step in range(1, WARM_UP + min(rounds, SPANS)):
        for turn in turns:
            _take_spans(session, turn, step)
    for turn in turns:
        _report_end(context, turn)
    if emulated:
        emulated.close()


def _turns(
    session: Session, payload: Mapping[str, Any], emulated: EmulatedLanes | None
) -> list[Turn]:
    """A turn a plan. Graphs share their memory: one is replayed at a time."""
    on_device = session.context.device.type == "cuda"
    as_graph = on_device and session.cluster.cuda_graph
    pool = torch.cuda.graph_pool_handle() if as_graph else None
    turns = []
    for entry in payload["plans"]:
        plan, order = SlicePlan(**entry["plan"]), order_from_json(entry["order"])
        lanes = emulated.of(plan.comm_ctas) if emulated else None
        executor = session.executor(plan, order, lanes)
        whole = session.executor(plan, order, lanes, WholeClock()) if on_device else executor
        timed = CapturedExecutor(whole, pool) if as_graph else whole
        turns.append(Turn(index=entry["index"], executor=executor, timed=timed))
    return turns


def _settle(session: Session, turn: Turn) -> None:
    """Play until the graph of a plan is captured, where one is wanted."""
    if not isinstance(turn.timed, CapturedExecutor):
        return
    session.context.report({"kind": "begin", "plan": turn.index})
    for _ in range(EAGER_STEPS + 1):
        session.parameters.steps = 0
        session.context.barrier()
        with _memory_of(turn):
            turn.play(session.batch)


@contextmanager
def _memory_of(turn: Turn) -> Iterator[None]:
    """Name the plan where memory runs out. This rank then ends, and with it the launch: the others
    wait in a collective and cannot be told."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not known and not any(text in str(error) for text in _ALLOCATION):
            raise
        raise PlanOutOfMemory(f"plan {turn.index}: {error}") from error


def _take_turn(session: Session, turn: Turn, step: int) -> None:
    """One step; those below WARM_UP are not kept."""
    context = session.context
    session.parameters.steps = step
    if step < WARM_UP:
        context.report({"kind": "begin", "plan": turn.index})
    context.barrier()
    with _memory_of(turn):
        result, makespan_ns = turn.play(session.batch)
    makespans = context.all_gather_objects(makespan_ns)
    if step < WARM_UP:
        return
    if not turn.apart:
        turn.keep(makespans, result.timeline)
    context.report(
        {
            "kind": "step",
            "plan": turn.index,
            "makespan_ns": max(makespans),
            "loss": result.loss,
            "grad_norm": result.grad_norm,
        }
    )


def _take_spans(session: Session, turn: Turn, step: int) -> None:
    """One step more, for its ops' spans, where the steps that count have none."""
    if not turn.apart:
        return
    context = session.context
    session.parameters.steps = step
    context.report({"kind": "begin", "plan": turn.index})
    context.barrier()
    timeline = turn.executor.run_step(*session.batch).timeline
    makespans = context.all_gather_objects(timeline.makespan_ns)
    if step >= WARM_UP:
        turn.keep(makespans, timeline)


def _report_end(context: RankContext, turn: Turn) -> None:
    """The median step on its slowest rank, and each op's usual duration on the rank that computes
    longest: what a profile's durations are of, and what the step hangs on."""
    ranked = sorted(range(len(turn.spans)), key=turn.makespans_ns.__getitem__)
    median = ranked[(len(ranked) - 1) // 2]
    mine = turn.spans[median] if context.rank == turn.slowest[median] else None
    found = context.all_gather_objects((mine, _usual_ns(turn), turn.peak_bytes))
    start_ns, end_ns = next(spans for spans, _, _ in found if spans is not None)
    computing = [op.lane == COMPUTE for op in turn.executor.ops]
    usual = max((medians for _, medians, _ in found), key=lambda m: sum(compress(m, computing)))
    context.report(
        {
            "kind": "end",
            "plan": turn.index,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "typical_ns": usual,
            "peak_bytes": max(peak for _, _, peak in found),
            **_graph_message(context, turn),
        }
    )


def _graph_message(context: RankContext, turn: Turn) -> dict[str, Any]:
    """Whether all ranks replayed a graph, and why not; nothing where none was wanted."""
    if not isinstance(turn.timed, CapturedExecutor):
        return {}
    reasons = context.all_gather_objects(turn.timed.why_not)
    return {"captured": not any(reasons), "why_not_captured": max(reasons)}


def _usual_ns(turn: Turn) -> list[float]:
    """Median duration of each op over this rank's rounds."""
    durations = ([end - start for start, end in zip(*spans, strict=True)] for spans in turn.spans)
    return [statistics.median(times) for times in zip(*durations, strict=True)]
