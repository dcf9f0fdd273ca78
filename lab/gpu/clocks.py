"""Power and clock while a GPU does one thing for some seconds: steps, one family of ops, nothing.

Steps are CUDA graphs back to back: unsliced and in two slices beside emulated collectives, and
without communication. What a family draws, and how a step's energy divides, follow from these; the
law of the power cap (``simulator.power``) is then held against the clocks of plans that played no
part in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from domino_tune.measure.gpu.loads import settled
from domino_tune.measure.gpu.replays import back_to_back, family_replay
from domino_tune.measure.gpu.sampler import Sampler, nvml_meter
from domino_tune.measure.power_law import COMPUTE, REST
from domino_tune.runtime.lanes.emulated_lanes import EmulatedLanes
from domino_tune.runtime.lanes.pace_rows import paces_of
from domino_tune.store.profiles import load_profile
from lab.gpu.played_plans import LAYERS, PLANS, TP, PlayedPlan
from lab.gpu.single_gpu_rank import single_gpu_session
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.steps import Step, captured_step
from simulator.build import build_schedule
from simulator.cost import CostModel
from simulator.presets import MODELS
from simulator.specs import ClusterSpec

SECONDS: Final = 11.0
REST_SECONDS: Final = 4.0
SETTLED_AFTER_S: Final = 5.0
"""The GPU is warm and its clock steady; what is summed up is from then on."""
PACES_FROM: Final = "h200-sxm"
"""Profile whose collectives are emulated."""


def clock_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield rest, every plan, and every family alone."""
    activities: list[tuple[str, Callable[[], Row], bool]] = [
        (REST, partial(_watched, stage, lambda: time.sleep(REST_SECONDS)), False),
        *((one.name, partial(_plan_row, stage, one), one.withheld) for one in PLANS),
        *((f"{family} alone", partial(_family_row, stage, family), False) for family in COMPUTE),
    ]
    for name, measure, withheld in activities:
        yield GpuCase(
            name=name, seconds=SECONDS + 3,
            measure=lambda measure=measure, withheld=withheld: {  # type: ignore[misc]
                "withheld": withheld, **measure(),
            },
        )  # fmt: skip


def _family_row(stage: Stage, family: str) -> Row:
    replay = family_replay(family)
    return _watched(stage, lambda: [one.took_ns for one in back_to_back([replay], SECONDS)])


def _plan_row(stage: Stage, one: PlayedPlan) -> Row:
    step = plan_step(stage, one)
    row = _watched(stage, lambda: [ran.took_ns for ran in back_to_back([step.replay], SECONDS)])
    step.require_numbers()
    return row


def plan_step(stage: Stage, one: PlayedPlan) -> Step:
    """Return a step of the plan beside emulated collectives, as a graph."""
    model = replace(MODELS[one.preset], num_hidden_layers=LAYERS)
    cluster = ClusterSpec(tp=TP)
    session = single_gpu_session(model, one.workload, cluster, stage.device)
    lanes = None
    if one.communicates:
        schedule = build_schedule(session.model, one.workload, cluster, one.plan)
        paces = paces_of(CostModel(load_profile(PACES_FROM)), [(one.plan.comm_ctas, schedule)])
        lanes = EmulatedLanes([list(row) for row in paces], stage.device).of(one.plan.comm_ctas)
    return captured_step(session, session.executor(one.plan, None, lanes))


def _watched(stage: Stage, run: Callable[[], list[float] | None]) -> Row:
    """Return the samples taken during ``run``, and the ns of its steps, none if it returns None."""
    with Sampler(nvml_meter(stage.device)) as sampler:
        begun_ns = time.perf_counter_ns()
        steps_ns = run() or []
        seconds = (time.perf_counter_ns() - begun_ns) / 1e9
    late = settled(sampler.samples, begun_ns + round(1e9 * SETTLED_AFTER_S))
    told = f"{late['clock_mhz']:.0f} MHz, {late['power_w']:.0f} W"
    return {
        "told": told,
        "step_ns": [round(one) for one in steps_ns],
        "samples": sampler.since(begun_ns),
        "reasons": sorted({sample.reasons for sample in sampler.samples}),
        "energy_j": sampler.energy_j,
        "watched_s": seconds,
        **late,
        **late_step(steps_ns, late["power_w"], SETTLED_AFTER_S),
    }


def late_step(steps_ns: list[float], power_w: float, after_s: float) -> dict[str, float]:
    """Return the median step's ms and J after ``after_s``; {} if no step ended later."""
    ended, late_ns = 0.0, []
    for step_ns in steps_ns:
        ended += step_ns / 1e9
        if ended >= after_s:
            late_ns.append(step_ns)
    if not late_ns:
        return {}
    step_ms = statistics.median(late_ns) / 1e6
    return {"step_ms": step_ms, "step_j": power_w * step_ms / 1e3}
