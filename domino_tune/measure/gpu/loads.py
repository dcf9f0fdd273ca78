"""Lasting loads: one family of ops, or all in turn, or nothing; its power, clock and elasticities.

A load begins on a GPU that rested, so that its clock falls while it runs: how a family's time goes
with the clock, its elasticity, is read off that fall.
"""

from __future__ import annotations

import math
import statistics
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from domino_tune.measure.gpu.replays import Ran, back_to_back, family_replay
from domino_tune.measure.gpu.sampler import Meter, Sample, Sampler, nvml_meter
from domino_tune.measure.power_law import COMPUTE, MIXED, REST
from domino_tune.runtime.launch.context import RankContext

Row = Mapping[str, Any]
REST_S: Final = 3.0
LASTING_S: Final = 15.0
SETTLED_AFTER_S: Final = 5.0
"""The clock is steady; what is summed up is from then on."""
FALLING_S: Final = 6.0
BURST_NS: Final = 20_000_000
CLOCK_KNOWN_AFTER_NS: Final = 200_000_000
"""NVML tells a clock a little late, which matters while it falls fast."""
LEAST_FALL: Final = 0.03
"""Least difference of the highest and the lowest clock, relative, that tells an elasticity."""

Moments = Iterable[tuple[int, float]]
"""When something ended (perf_counter), and how long it took, ns."""


def measure_loads(
    context: RankContext, names: Sequence[str], spent: Callable[[], bool]
) -> bool:  # fmt: skip
    """Have rank 0's GPU run loads while the others' rest; report a ``power`` message behind each.
    Return whether all were run before the time was ``spent``."""
    rows: list[Row] = []
    for name in names:
        if spent():
            return False
        if context.rank == 0:
            meter = nvml_meter(context.device)
            rows.append(run_load(name, meter))
            torch.cuda.empty_cache()
            context.report(power_message(meter, rows))
        context.barrier()
    return True


def power_message(meter: Meter, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the loads so far, with the GPU's limits."""
    return {
        "kind": "power", "boost_mhz": meter.boost_mhz, "cap_w": meter.cap_w, "loads": list(rows),
    }  # fmt: skip


def run_load(name: str, meter: Meter) -> Row:
    """Return the row of a load: ``REST``, ``MIXED``, or a family of ops."""
    replays = [family_replay(family) for family in (COMPUTE if name == MIXED else (name,))
               if family in COMPUTE]  # fmt: skip
    torch.cuda.synchronize()
    time.sleep(REST_S)
    with Sampler(meter) as sampler:
        begun_ns = time.perf_counter_ns()
        if name == REST:
            time.sleep(REST_S)
            return {"load": name, **settled(sampler.samples, begun_ns)}
        ran = back_to_back(replays, FALLING_S if name == MIXED else LASTING_S)
    if name == MIXED:
        return {"load": name, "elasticity": mixed_elasticities(ran, sampler.samples, begun_ns)}
    steady_ns = begun_ns + round(1e9 * SETTLED_AFTER_S)
    row = settled(sampler.samples, steady_ns)
    return {"load": name, **row, "burst_mhz": burst_mhz(ran, steady_ns, row["clock_mhz"])}


def settled(samples: Sequence[Sample], after_ns: int) -> dict[str, float]:
    """Return mean clock (MHz) and power (W) from ``after_ns`` on."""
    late = [one for one in samples if one.at_ns >= after_ns] or samples[-1:]
    return {
        "clock_mhz": statistics.fmean(one.clock_mhz for one in late),
        "power_w": statistics.fmean(one.power_w for one in late),
    }


def burst_mhz(ran: Sequence[Ran], steady_ns: int, steady_mhz: float) -> float:
    """Return the clock of the first moments: that at which steady ops would be as fast."""
    first, so_far = [], 0.0
    for one in ran:
        first.append(one.took_ns)
        so_far += one.took_ns
        if so_far > BURST_NS:
            break
    late = [one.took_ns for one in ran if one.at_ns >= steady_ns] or [ran[-1].took_ns]
    return steady_mhz * statistics.median(late) / statistics.median(first)


def mixed_elasticities(
    ran: Sequence[Ran], samples: Sequence[Sample], begun_ns: int
) -> dict[str, float]:
    """Return the elasticity of each family of a mixed load."""
    moments: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for one in ran:
        if one.at_ns >= begun_ns + CLOCK_KNOWN_AFTER_NS:
            moments[COMPUTE[one.which]].append((one.at_ns, one.took_ns))
    found = {family: elasticity(mine, samples) for family, mine in moments.items()}
    return {family: value for family, value in found.items() if value is not None}


def elasticity(moments: Moments, samples: Sequence[Sample]) -> float | None:
    """Return −d ln(time) / d ln(clock), by least squares; None where the clock hardly moved."""
    found = [(clock_at(samples, at_ns), took_ns) for at_ns, took_ns in moments if took_ns > 0]
    clocks = [clock for clock, _ in found]
    if len(found) < 2 or max(clocks) / min(clocks) < 1 + LEAST_FALL:
        return None
    logs = [math.log(took_ns) for _, took_ns in found]
    return float(-np.polyfit(np.log(clocks), logs, 1)[0])


def clock_at(samples: Sequence[Sample], at_ns: int) -> int:
    """Return the clock of the last sample before a moment, or of the first."""
    after = bisect_left(samples, at_ns, key=lambda sample: sample.at_ns)
    return samples[max(0, after - 1)].clock_mhz
