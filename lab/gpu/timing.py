"""Times of work: on a GPU between events, perhaps with the host ahead; elsewhere, where stages only
rehearse, by the host's clock. And what a GPU does while work lasts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from domino_tune.measure.gpu.events import recorded, since_ns
from domino_tune.measure.gpu.loads import settled
from domino_tune.measure.gpu.replays import Ran, Replay, back_to_back
from domino_tune.measure.gpu.sampler import Sampler, nvml_meter
from domino_tune.runtime.head_start import HeadStart

Play = Callable[[], object]
SETTLED_AFTER_S: Final = 5.0
"""The GPU is warm and its clock steady; what is summed up is from then on."""


def took_ns(device: torch.device, play: Play, ahead: HeadStart | None = None) -> float:
    """Return the ns of one call; ``ahead`` keeps the GPU waiting while the host launches it."""
    if device.type != "cuda":
        begun = time.perf_counter_ns()
        play()
        return float(time.perf_counter_ns() - begun)
    torch.cuda.synchronize()
    if ahead:
        ahead.give()
    start = recorded()
    play()
    end = recorded()
    if ahead:
        ahead.check()
    torch.cuda.synchronize()
    return since_ns(start, end)


def median_ns(
    device: torch.device, play: Play, calls: int, ahead: HeadStart | None = None
) -> float:
    """Return the median ns of some calls."""
    return statistics.median(took_ns(device, play, ahead) for _ in range(calls))


def each_ns(
    timed: Callable[[Any], float], makers: Mapping[str, Callable[[], Any]]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the ns of each work, and the error of each that cannot be made or played here: a build
    or a GPU may have no such kernel."""
    found: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, make in makers.items():
        try:
            found[name] = timed(make())
        except Exception as error:
            failed[name] = reason(error)
    return found, failed


def reason(error: Exception) -> str:
    """Return the first line of an error, for a record."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def lasting(device: torch.device, replay: Replay | None, seconds: float) -> dict[str, Any]:
    """Return clock, power and steps of a graph that is replayed for some seconds, or of rest: what
    was sampled, means after SETTLED_AFTER_S, and the median step's ms and J from then on."""
    with Sampler(nvml_meter(device)) as sampler:
        begun_ns = time.perf_counter_ns()
        ran = back_to_back([replay], seconds) if replay else []
        if not replay:
            time.sleep(seconds)
        watched_s = (time.perf_counter_ns() - begun_ns) / 1e9
    steady_ns = begun_ns + round(1e9 * SETTLED_AFTER_S)
    late = settled(sampler.samples, steady_ns)
    return {
        "told": f"{late['clock_mhz']:.0f} MHz, {late['power_w']:.0f} W",
        "step_ns": [round(one.took_ns) for one in ran],
        "samples": sampler.since(begun_ns),
        "reasons": sorted({sample.reasons for sample in sampler.samples}),
        "energy_j": sampler.energy_j,
        "watched_s": watched_s,
        **late,
        **late_step(ran, late["power_w"], steady_ns),
    }


def late_step(ran: Sequence[Ran], power_w: float, steady_ns: int) -> dict[str, float]:
    """Return the median step's ms and J after ``steady_ns``; {} if no step ended later."""
    late_ns = [one.took_ns for one in ran if one.at_ns >= steady_ns]
    if not late_ns:
        return {}
    step_ms = statistics.median(late_ns) / 1e6
    return {"step_ms": step_ms, "step_j": power_w * step_ms / 1e3}
