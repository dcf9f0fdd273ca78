"""Ops at the clock of a long run: layers in place, as CUDA graphs that are replayed back to back.

A case begins on a GPU that rested, so that its clock falls while it runs: how a family's time goes
with the clock, its elasticity, is read off that fall. The ops' times are those after it.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import torch

from domino_tune.measure.gpu.loads import (
    CLOCK_KNOWN_AFTER_NS,
    FALLING_S,
    REST_S,
    elasticity,
    settled,
)  # fmt: skip
from domino_tune.measure.gpu.replays import captured
from domino_tune.measure.gpu.sampler import Sample, Sampler, nvml_meter
from domino_tune.measure.power_law import COMPUTE
from domino_tune.measure.probes.compute import SHORTEST_NS
from domino_tune.runtime.session import Session
from lab.gpu.cases import TP, TWO_SLICES, RankCase, preset_cases
from lab.gpu.ops import memory_bytes, op_row
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.steps import MarkClock, Step, captured_step, timed_replays
from simulator.ops import Signature
from simulator.plan import MEGATRON, SlicePlan

PLANS: Final = (MEGATRON, TWO_SLICES)
PRESETS: Final = 2
"""How many presets are played, of those that are asked for most."""
PAIRS: Final = 200

Moments = list[tuple[int, list[float]]]
"""Each replay's end by perf_counter_ns, and its ops' ns."""


def sustained_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield the batches of the first presets at TP 8, unsliced and in two slices."""
    cases = (case for case in preset_cases(memory_bytes(stage.device)) if case.tp == TP)
    for case in islice(cases, PRESETS):
        for plan in PLANS:
            yield GpuCase(
                name=f"{case.name} {plan.label}", seconds=REST_S + FALLING_S + 4,
                measure=partial(_sustained, stage, case, plan),
            )  # fmt: skip


def _sustained(stage: Stage, case: RankCase, plan: SlicePlan) -> Row:
    session = case.session(stage.device)
    steps = marked_steps(session, plan)
    empty_ns, least = marks_ns(), torch.zeros(1, device=stage.device)
    least_ns = marks_ns(lambda: least.add_(1))
    torch.cuda.synchronize()
    time.sleep(REST_S)
    begun_ns = time.perf_counter_ns()
    with Sampler(nvml_meter(stage.device)) as sampler:
        moments = list(timed_replays(steps, FALLING_S))
    for step in steps:
        step.require_numbers()
    signatures, steady_ns = steps[0].signatures, begun_ns + round(1e9 * FALLING_S / 2)
    known = [one for one in moments if one[0] >= begun_ns + CLOCK_KNOWN_AFTER_NS]
    return {
        "kind": "plan",
        "empty_span_us": empty_ns / 1e3,
        "least_op_us": least_ns / 1e3,  # of one element: what events around any kernel add
        "ops": op_rows(signatures, [m for m in moments if m[0] >= steady_ns], empty_ns),
        "clock_mhz": settled(sampler.samples, steady_ns)["clock_mhz"],
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
        if torch.cuda.is_current_stream_capturing():
            for _ in range(PAIRS):
                clock.tick()
                work()
                clock.tick()

    captured(lambda: marks).graph.replay()
    torch.cuda.synchronize()
    return statistics.median(clock.op_ns())


def op_rows(
    signatures: Sequence[Signature], moments: Moments, empty_ns: float
) -> list[dict[str, Any]]:
    """Return the rows of a ``plan`` message: each signature's median over all replays."""
    found: dict[Signature, list[float]] = defaultdict(list)
    for _, op_ns in moments:
        for signature, took_ns in zip(signatures, op_ns, strict=True):
            found[signature].append(max(SHORTEST_NS, took_ns - empty_ns))
    return [op_row(signature, times) for signature, times in sorted(found.items(), key=str)]


def by_family(
    signatures: Sequence[Signature], moments: Moments, begun_ns: int, empty_ns: float
) -> list[tuple[float, ...]]:
    """Return of each replay its end, in s, and the µs of GEMMs, attention and pointwise ops."""
    rows = []
    for at_ns, op_ns in moments:
        sums = dict.fromkeys(COMPUTE, 0.0)
        for signature, took_ns in zip(signatures, op_ns, strict=True):
            sums[signature.kind] += max(SHORTEST_NS, took_ns - empty_ns) / 1e3
        rows.append(
            (round((at_ns - begun_ns) / 1e9, 4), *(round(took_us, 4) for took_us in sums.values()))
        )
    return rows


def elasticities(
    signatures: Sequence[Signature], moments: Moments, samples: Sequence[Sample], empty_ns: float
) -> dict[str, float]:
    """Return the elasticity by family; empty where the clock hardly moved."""
    rows = by_family(signatures, moments, 0, empty_ns)
    ends = [at_ns for at_ns, _ in moments]
    found = {
        family: elasticity(zip(ends, [row[column] for row in rows], strict=True), samples)
        for column, family in enumerate(COMPUTE, 1)
    }
    return {family: value for family, value in found.items() if value is not None}
