"""Power and clock while a GPU does one thing for half a minute: steps, one family of ops, nothing.

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

from domino_tune.runtime.clock import NoClock
from domino_tune.runtime.lanes.emulated_lanes import EmulatedLanes
from domino_tune.runtime.lanes.pace_rows import paces_of
from domino_tune.store.profiles import load_profile
from lab.gpu.played_plans import LAYERS, PLANS, TP, PlayedPlan
from lab.gpu.replays import (
    Replay,
    back_to_back,
    captured,
    captured_step,
)
from lab.gpu.sampler import Sampler, nvml_meter
from lab.gpu.single_gpu_rank import single_gpu_session
from lab.gpu.stage import GpuCase, Row, Stage
from lab.gpu.step_breakdown import KINDS
from lab.gpu.works import works
from simulator.build import build_schedule
from simulator.cost import CostModel
from simulator.presets import MODELS
from simulator.specs import ClusterSpec

SECONDS: Final = 30.0
SETTLED_AFTER_S: Final = 10.0
"""The GPU is warm and its clock steady; what is summed up is from then on."""
CALLS: Final = 4
"""Calls of each of a family's works in a graph."""
PACES_FROM: Final = "h200-sxm"
"""Profile whose collectives are emulated."""


def clock_cases(stage: Stage) -> Iterator[GpuCase]:
    """Yield rest, every plan, and every family alone."""
    activities: list[tuple[str, Callable[[], Replay | None], bool]] = [
        ("rest", lambda: None, False),
        *((one.name, partial(_plan_replay, stage, one), one.withheld) for one in PLANS),
        *((f"{family} alone", partial(_family_replay, family), False) for family in KINDS),
    ]
    for name, make, withheld in activities:
        yield GpuCase(
            name=name, seconds=SECONDS + 5, measure=partial(_watched, stage, make, withheld),
            tell=told,
        )  # fmt: skip


def _plan_replay(stage: Stage, one: PlayedPlan) -> Replay:
    model = replace(MODELS[one.preset], num_hidden_layers=LAYERS)
    cluster = ClusterSpec(tp=TP)
    session = single_gpu_session(model, one.workload, cluster, stage.device)
    lanes = None
    if one.communicates:
        schedule = build_schedule(session.model, one.workload, cluster, one.plan)
        paces = paces_of(CostModel(load_profile(PACES_FROM)), [(one.plan.comm_ctas, schedule)])
        lanes = EmulatedLanes([list(row) for row in paces], stage.device).of(one.plan.comm_ctas)
    return captured_step(session, session.executor(one.plan, None, lanes))


def _family_replay(family: str) -> Replay:
    def make() -> Callable[[], None]:
        made = [work.make() for work in works() if work.family == family]

        def play() -> None:
            for work in made:
                for call in range(CALLS):
                    work(call)

        return play

    return captured(make, NoClock())


def _watched(stage: Stage, make: Callable[[], Replay | None], withheld: bool) -> Row:
    """Return what was sampled while the work ran, or nothing did."""
    meter, replay = nvml_meter(stage.device), make()
    with Sampler(meter) as sampler:
        begun_ns = time.perf_counter_ns()
        if replay is None:
            time.sleep(SECONDS)
        steps_ns = back_to_back(replay, SECONDS) if replay else []
        seconds = (time.perf_counter_ns() - begun_ns) / 1e9
    if replay:
        replay.require_numbers()
    samples = [((at - begun_ns) / 1e9, mhz, watts) for at, mhz, watts, _ in sampler.samples]
    return {
        "withheld": withheld,
        "step_ns": [round(one) for one in steps_ns],
        "samples": [(round(at, 4), mhz, watts) for at, mhz, watts in samples],
        "reasons": sorted({sample.reasons for sample in sampler.samples}),
        "energy_j": sampler.energy_j,
        "watched_s": seconds,
        **settled(samples, steps_ns, SETTLED_AFTER_S),
    }


def settled(
    samples: list[tuple[float, int, float]], steps_ns: list[float], after_s: float
) -> dict[str, float]:
    """Return mean clock (MHz) and power (W) behind ``after_s``, and the median step's ms and J."""
    late = [(mhz, watts) for at, mhz, watts in samples if at >= after_s]
    clock_mhz, power_w = (statistics.fmean(column) for column in zip(*late, strict=True))
    found = {"clock_mhz": clock_mhz, "power_w": power_w}
    ended, late_ns = 0.0, []
    for step_ns in steps_ns:
        ended += step_ns / 1e9
        if ended >= after_s:
            late_ns.append(step_ns)
    if late_ns:
        step_ms = statistics.median(late_ns) / 1e6
        found |= {"step_ms": step_ms, "step_j": power_w * step_ms / 1e3}
    return found


def told(row: Row) -> str:
    """Return clock and power, and what a step takes of time and energy."""
    text = f"{row['clock_mhz']:.0f} MHz, {row['power_w']:.0f} W"
    if "step_ms" in row:
        text += f", {row['step_ms']:.2f} ms and {row['step_j']:.2f} J a step"
    return text
