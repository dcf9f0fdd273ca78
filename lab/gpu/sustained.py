"""Stage ``sustained``: ops at the clock of a long run, in layers as CUDA graphs that are replayed
back to back. A graph holds an event before and after each op; two graphs take turns, so that one
runs while the other's events are read. A case begins on a GPU that rested, so that its clock falls
while it runs: how a family's time goes with the clock, its elasticity, is read off that fall. The
ops' times are those after it."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import torch

from domino_tune.base.errors import RunError
from domino_tune.measure.gpu import loads, since_ns
from domino_tune.measure.gpu.loads import (
    FALLING_S,
    CapturedWork,
    Sampler,
    captured,
    family_replay,
    nvml_meter,
)
from domino_tune.measure.laws import COMPUTE as FAMILIES
from domino_tune.measure.laws import REST
from domino_tune.measure.probes.compute import SHORTEST_NS
from domino_tune.runtime.clock import Clock, NoClock, Tick
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.lanes import paces_of
from domino_tune.runtime.lanes.streams import EmulatedLanes
from domino_tune.runtime.session import Session
from domino_tune.store.profiles import load_profile
from lab.gpu.cases import PLANS, TP, TWO_SLICES, PlayedPlan, RankCase, preset_cases
from lab.gpu.ops import memory_bytes, op_row, session_of
from lab.gpu.stage import GpuCase, Row, Stage, lasting
from simulator.build import build_schedule
from simulator.cost import CostModel
from simulator.ops import Signature
from simulator.plan import MEGATRON, SlicePlan
from simulator.schedule import COMPUTE

PRESETS: Final = 2  # How many presets are played, of those that are asked for most
Ops = Sequence[Signature]
Sums = list[tuple[float, ...]]
Moments = list[tuple[int, list[float]]]  # Each replay's end by perf_counter_ns, and its ops' ns


class MarkClock:
    """A clock for a capture: each moment is an event, which every replay records anew."""

    def __init__(self) -> None:
        self.events: list[torch.cuda.Event] = []

    def start(self) -> None:
        """Begin a step."""
        self.events.clear()

    def tick(self) -> Tick:
        """Return an event after all work captured so far."""
        event = torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]
        event.record()
        self.events.append(event)
        return event

    def stop(self) -> None:
        """Do nothing: a capture runs nothing."""

    def at_ns(self, tick: Tick) -> int:
        """Return 0: the moment is known after a replay."""
        return 0

    def op_ns(self) -> list[float]:
        """Return what each op took in the last replay, which has ended."""
        return [since_ns(a, b) for a, b in zip(self.events[::2], self.events[1::2], strict=True)]


class Step(NamedTuple):
    """A captured step: ``marks`` has events of its ops, if timed, with these ``signatures``."""

    replay: CapturedWork
    marks: MarkClock
    signatures: tuple[Signature, ...]
    executor: Executor

    def require_numbers(self) -> None:
        """Raise RunError where it computed no numbers: its power would be another one."""
        if not math.isfinite(float(self.executor.loss())):
            raise RunError("The replayed step's loss is no number: nothing was measured.")


def captured_step(session: Session, executor: Executor, *, marked: bool = False) -> Step:
    """Return a step on the session's batch; ``marked``: with events around its compute ops."""
    executor.run_step(*session.batch)
    marks = MarkClock()
    clock: Clock = marks if marked else NoClock()

    def play() -> None:
        capturing = torch.cuda.is_current_stream_capturing()
        executor.play(*session.batch, clock if capturing else NoClock())

    replay = captured(lambda: play)._replace(keeps=session)
    computes = tuple(op.signature for op in executor.ops if op.lane == COMPUTE)
    return Step(replay, marks, computes, executor)


def timed_replays(steps: Sequence[Step], seconds: float) -> Iterator[tuple[int, list[float]]]:
    """Replay marked steps in turn; yield the host's perf_counter_ns at each end, and ops' ns."""
    stop_at, number = time.monotonic() + seconds, 0
    under_way: deque[tuple[Step, torch.cuda.Event]] = deque()

    def ended(step: Step, end: torch.cuda.Event) -> tuple[int, list[float]]:
        end.synchronize()
        return time.perf_counter_ns(), step.marks.op_ns()

    while time.monotonic() < stop_at or number < len(steps):
        step = steps[number % len(steps)]
        step.replay.graph.replay()
        end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        end.record()
        under_way.append((step, end))
        number += 1
        if len(under_way) == len(steps):
            yield ended(*under_way.popleft())
    for one in under_way:
        yield ended(*one)


def sustained_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield the batches of the first presets at TP 8, unsliced and in two slices."""
    cases = (case for case in preset_cases(memory_bytes(stage.device)) if case.tp == TP)
    for case in islice(cases, PRESETS):
        for plan in (MEGATRON, TWO_SLICES):
            measure = partial(_sustained, stage, case, plan)
            yield GpuCase(f"{case.name} {plan.label}", loads.REST_S + FALLING_S + 4, measure)


def _sustained(stage: Stage, case: RankCase, plan: SlicePlan) -> Row:
    steps = marked_steps(session_of(case, stage.device), plan)
    empty_ns, least = marks_ns(), torch.zeros(1, device=stage.device)
    least_ns = marks_ns(lambda: least.add_(1))
    torch.cuda.synchronize()
    time.sleep(loads.REST_S)
    begun_ns = time.perf_counter_ns()
    with Sampler(nvml_meter(stage.device)) as sampler:
        moments = list(timed_replays(steps, FALLING_S))
    for step in steps:
        step.require_numbers()
    signatures, steady_ns = steps[0].signatures, begun_ns + round(1e9 * FALLING_S / 2)
    known = [one for one in moments if one[0] >= begun_ns + loads.CLOCK_KNOWN_AFTER_NS]
    return {
        "kind": "plan",
        "empty_span_us": empty_ns / 1e3,
        "least_op_us": least_ns / 1e3,  # of one element: what events around any kernel add
        "ops": op_rows(signatures, [m for m in moments if m[0] >= steady_ns], empty_ns),
        "clock_mhz": loads.settled(sampler.samples, steady_ns)["clock_mhz"],
        "elasticity": elasticities(signatures, known, sampler.samples, empty_ns),
        "samples": sampler.since(begun_ns),
        "falling": by_family(signatures, moments, begun_ns, empty_ns),
    }


def marked_steps(session: Session, plan: SlicePlan) -> list[Step]:
    """Return two captured steps of the same weights."""
    return [captured_step(session, session.executor(plan, None), marked=True) for _ in range(2)]


def marks_ns(work: Callable[[], object] = lambda: None) -> float:
    """Return the median ns between two events of a graph, with nothing or ``work`` between."""
    clock = MarkClock()

    def marks() -> None:
        for _ in range(200 if torch.cuda.is_current_stream_capturing() else 0):
            clock.tick()
            work()
            clock.tick()

    captured(lambda: marks).graph.replay()
    torch.cuda.synchronize()
    return statistics.median(clock.op_ns())


def op_rows(signatures: Ops, moments: Moments, empty_ns: float) -> list[dict[str, Any]]:
    """Return the rows of a ``plan`` message: each signature's median over all replays."""
    found: dict[Signature, list[float]] = defaultdict(list)
    for _, op_ns in moments:
        for signature, took_ns in zip(signatures, op_ns, strict=True):
            found[signature].append(max(SHORTEST_NS, took_ns - empty_ns))
    return [op_row(signature, times) for signature, times in sorted(found.items(), key=str)]


def by_family(ops: Ops, moments: Moments, begun_ns: int, empty_ns: float) -> Sums:
    """Return of each replay its end, in s, and the µs of GEMMs, attention and pointwise ops."""
    rows = []
    for at_ns, op_ns in moments:
        sums = dict.fromkeys(FAMILIES, 0.0)
        for signature, took_ns in zip(ops, op_ns, strict=True):
            sums[signature.kind] += max(SHORTEST_NS, took_ns - empty_ns) / 1e3
        rounded = (round(took_us, 4) for took_us in sums.values())
        rows.append((round((at_ns - begun_ns) / 1e9, 4), *rounded))
    return rows


def elasticities(ops: Ops, moments: Moments, samples: Any, empty_ns: float) -> dict[str, float]:
    """Return the elasticity by family; empty where the clock hardly moved."""
    rows, ends = by_family(ops, moments, 0, empty_ns), [at_ns for at_ns, _ in moments]
    found = {
        family: loads.elasticity(zip(ends, [row[column] for row in rows], strict=True), samples)
        for column, family in enumerate(FAMILIES, 1)
    }
    return {family: value for family, value in found.items() if value is not None}


SECONDS: Final = 11.0


def clock_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield rest, every plan, unsliced and in two slices beside emulated collectives or without
    communication, and every family alone: what a family draws, and how a step's energy divides."""

    def case(name: str, measure: Callable[[], Row], *, withheld: bool = False) -> GpuCase:
        return GpuCase(name, SECONDS + 3, lambda: {"withheld": withheld, **measure()})

    def plan(one: PlayedPlan) -> Row:
        step = plan_step(stage, one)
        row = lasting(stage.device, step.replay, SECONDS)
        step.require_numbers()
        return row

    def alone(family: str) -> Row:
        return lasting(stage.device, family_replay(family), SECONDS)

    yield case(REST, lambda: lasting(stage.device, None, 4.0))
    for one in PLANS:
        yield case(one.name, partial(plan, one), withheld=one.withheld)
    for family in FAMILIES:
        yield case(f"{family} alone", partial(alone, family))


def plan_step(stage: Stage, one: PlayedPlan) -> Step:
    """Return a step of the plan beside emulated collectives, as a graph."""
    case, lanes = one.case, None
    session = session_of(case, stage.device)
    if one.communicates:
        schedule = build_schedule(session.model, case.workload, case.cluster, one.plan)
        paces = paces_of(CostModel(load_profile("h200-sxm")), [(one.plan.comm_ctas, schedule)])
        lanes = EmulatedLanes([list(row) for row in paces], stage.device).of(one.plan.comm_ctas)
    return captured_step(session, session.executor(one.plan, None, lanes))
