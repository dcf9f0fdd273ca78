"""Ops at the clock of a long run: layers in place, as CUDA graphs that are replayed back to back.

A case begins on a GPU that rested, so that its clock falls while it runs: how a family's time goes
with the clock, its elasticity, is read off that fall. The ops' times are those behind it.
"""

from __future__ import annotations

import math
import statistics
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import torch

from domino_tune.runtime.session import Session
from lab.gpu.op_stages import memory_bytes
from lab.gpu.ops import SHORTEST_NS, OpsCase, op_row, ops_cases
from lab.gpu.played_plans import TP, TWO_SLICES
from lab.gpu.replays import (
    MarkClock,
    Replay,
    captured,
    captured_step,
    timed_replays,
)
from lab.gpu.sampler import Sample, Sampler, nvml_meter
from lab.gpu.single_gpu_rank import single_gpu_session
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.step_breakdown import KINDS
from simulator.ops import Signature
from simulator.plan import MEGATRON, SlicePlan

PLANS: Final = (MEGATRON, TWO_SLICES)
PRESETS: Final = 8
"""How many presets are played, of those that are asked for most."""
REST_S: Final = 3.0
FALLING_S: Final = 3.0
STEADY_S: Final = 3.0
CLOCK_KNOWN_AFTER_S: Final = 0.2
"""NVML tells a clock a little late, which matters while it falls fast."""
PAIRS: Final = 200
LEAST_FALL: Final = 0.03
"""Least difference of the highest and the lowest clock, relative, that tells an elasticity."""

Moments = list[tuple[int, list[float]]]
"""Each replay's end by perf_counter_ns, and its ops' ns."""


def sustained_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield the batches of the first presets at TP 8, unsliced and in two slices."""
    cases = (case for case in ops_cases(memory_bytes(stage.device)) if case.tp == TP)
    for case in islice(cases, PRESETS):
        for plan in PLANS:
            yield GpuCase(
                name=f"{case.name} {plan.label}", seconds=REST_S + FALLING_S + STEADY_S + 4,
                measure=partial(_sustained, stage, case, plan), tell=told,
            )  # fmt: skip


def _sustained(stage: Stage, case: OpsCase, plan: SlicePlan) -> Row:
    session = single_gpu_session(case.model, case.workload, case.cluster, stage.device)
    steps = _marked_steps(session, plan)
    empty_ns, least = marks_ns(), torch.zeros(1, device=stage.device)
    least_ns = marks_ns(lambda: least.add_(1))
    torch.cuda.synchronize()
    time.sleep(REST_S)
    begun_ns = time.perf_counter_ns()
    with Sampler(nvml_meter(stage.device)) as sampler:
        moments = list(timed_replays(steps, FALLING_S + STEADY_S))
    for step in steps:
        step.require_numbers()
    signatures = steps[0].signatures
    steady_ns, known_ns = (begun_ns + round(1e9 * s) for s in (FALLING_S, CLOCK_KNOWN_AFTER_S))
    return {
        "kind": "plan",
        "empty_span_us": empty_ns / 1e3,
        "least_op_us": least_ns / 1e3,  # of one element: what events around any kernel add
        "ops": op_rows(signatures, [m for m in moments if m[0] >= steady_ns], empty_ns),
        "clock_mhz": statistics.fmean(s.clock_mhz for s in sampler.samples if s.at_ns >= steady_ns),
        "elasticity": elasticities(
            signatures, [m for m in moments if m[0] >= known_ns], sampler.samples, empty_ns
        ),
        "samples": [
            (round((s.at_ns - begun_ns) / 1e9, 4), s.clock_mhz, s.power_w) for s in sampler.samples
        ],
        "falling": by_family(signatures, moments, begun_ns, empty_ns),
    }


def _marked_steps(session: Session, plan: SlicePlan) -> list[Replay]:
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

    replay = captured(lambda: marks, clock)
    replay.graph.replay()
    torch.cuda.synchronize()
    return statistics.median(replay.op_ns())


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
        sums = dict.fromkeys(KINDS, 0.0)
        for signature, took_ns in zip(signatures, op_ns, strict=True):
            sums[signature.kind] += max(SHORTEST_NS, took_ns - empty_ns) / 1e3
        rows.append(
            (round((at_ns - begun_ns) / 1e9, 4), *(round(took_us, 4) for took_us in sums.values()))
        )
    return rows


def elasticities(
    signatures: Sequence[Signature], moments: Moments, samples: Sequence[Sample], empty_ns: float
) -> dict[str, float]:
    """Return by family −d ln(time) / d ln(clock), by least squares over the replays; empty where
    the clock hardly moved."""
    rows = by_family(signatures, moments, 0, empty_ns)
    clocks = [clock_at(samples, at_ns) for at_ns, _ in moments]
    if max(clocks) / min(clocks) < 1 + LEAST_FALL:
        return {}
    logs = np.log(clocks)
    return {
        family: float(-np.polyfit(logs, [math.log(row[column]) for row in rows], 1)[0])
        for column, family in enumerate(KINDS, 1)
        if all(row[column] > 0 for row in rows)
    }


def clock_at(samples: Sequence[Sample], at_ns: int) -> int:
    """Return the clock of the last sample before a moment, or of the first."""
    after = bisect_left([sample.at_ns for sample in samples], at_ns)
    return samples[max(0, after - 1)].clock_mhz


def told(row: Mapping[str, Any]) -> str:
    """Return the number of signatures, their clock, and each family's elasticity."""
    found = ", ".join(f"{name} {value:.2f}" for name, value in row["elasticity"].items())
    return f"{len(row['ops'])} signatures at {row['clock_mhz']:.0f} MHz, elasticity {found or '-'}"
