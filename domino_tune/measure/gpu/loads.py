"""Lasting loads: replays of works, and a sampler of the power and clock beside them.

A load begins on a GPU that rested, so that its clock falls while it runs: how a family's time goes
with the clock, its elasticity, is read off that fall.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from domino_tune.base.errors import RunError
from domino_tune.measure.gpu import first_works, recorded, since_ns
from domino_tune.measure.laws import COMPUTE, MIXED, REST
from domino_tune.runtime.executor import EAGER_STEPS, root_cause
from domino_tune.runtime.launch.context import RankContext

# A sampler of one GPU's clock and power through NVML, in a thread alongside the work --------------
# Power is the instantaneous value (NVML_FI_DEV_POWER_INSTANT), not the mean over the last second
# that nvidia-smi shows; joules come from the driver's counter.

PERIOD_S: Final = 0.01
NEEDS_BINDINGS: Final = (
    "Clocks and power are read by NVIDIA's bindings, which are not installed: "
    "pip install 'domino_tune[kernels]'"
)


class Sample(NamedTuple):
    """The state at ``at_ns`` of ``time.perf_counter_ns``."""

    at_ns: int
    clock_mhz: int
    power_w: float
    reasons: int


class Meter(NamedTuple):
    """Reads one GPU: its present state, the joules since the driver was loaded, its highest clock
    and its power cap."""

    sample: Callable[[], Sample]
    energy_j: Callable[[], float]
    boost_mhz: int
    cap_w: float


class Sampler:
    """Samples within its ``with`` block; ``samples`` and ``energy_j`` then cover that time."""

    def __init__(self, meter: Meter, period_s: float = PERIOD_S) -> None:
        self.meter = meter
        self.period_s = period_s
        self.samples: list[Sample] = []
        self.energy_j = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self.samples.append(self.meter.sample())  # fail now if sampling fails
        self.energy_j = -self.meter.energy_j()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._ended.set()
        self._thread.join()
        self.energy_j += self.meter.energy_j()

    def since(self, begun_ns: int) -> list[tuple[float, int, float]]:
        """Return each sample as (seconds since ``begun_ns``, MHz, W)."""
        return [(round((s.at_ns - begun_ns) / 1e9, 4), s.clock_mhz, s.power_w)
                for s in self.samples]  # fmt: skip

    def _sample(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            self.samples.append(self.meter.sample())
            due = max(due + self.period_s, time.monotonic())
            self._ended.wait(due - time.monotonic())


def nvml_meter(device: torch.device) -> Meter:
    """Return the meter of a CUDA device. Raise RunError if NVML cannot be used."""
    try:
        import pynvml
    except ImportError as error:
        raise RunError(NEEDS_BINDINGS) from error
    try:
        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        raise RunError(f"NVML does not answer: {error}") from error
    return Meter(
        sample=lambda: _sample(pynvml, handle),
        energy_j=lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000,
        boost_mhz=int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        cap_w=float(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000,
    )


def _sample(nvml: Any, handle: Any) -> Sample:
    (power,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
    if power.nvmlReturn:  # otherwise a GPU without this value would appear to draw 0 W
        raise nvml.NVMLError(power.nvmlReturn)
    clock_mhz = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return Sample(time.perf_counter_ns(), clock_mhz, power.value.uiVal / 1000, reasons)


# Replays ------------------------------------------------------------------------------------------
# Work as a CUDA graph, run back to back, so that a GPU has the clock of a long run.
#
# Nothing spins and nothing waits for launches.

QUEUED: Final = 3
"""Replays that the host is ahead of the device."""
CALLS: Final = 4
"""Calls of each of a family's works in a graph."""


class CapturedWork(NamedTuple):
    """Captured work. ``keeps``: what owns the memory that the graph reads."""

    graph: torch.cuda.CUDAGraph
    keeps: object


class Ran(NamedTuple):
    """A replay that ended at ``at_ns`` (perf_counter) and took ``took_ns``; which one it was."""

    which: int
    at_ns: int
    took_ns: float


class CaptureError(RunError):
    """A capture failed. Torch's random numbers cannot be trusted in this process any more."""


def captured(make: Callable[[], Callable[[], object]]) -> CapturedWork:
    """Return a graph of the work that ``make`` returns, which runs eagerly before. Raise
    CaptureError where that fails.

    All of it is on one stream: a backward op runs where its forward did, and a capture may wait for
    no other stream.
    """
    usual, own = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    own.wait_stream(usual)
    with torch.cuda.stream(own):
        work = make()
        for _ in range(EAGER_STEPS):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
            work()
    except (RuntimeError, AssertionError) as error:
        torch.cuda.set_stream(usual)  # a failed capture may leave its own stream current
        raise CaptureError(f"No graph could be captured: {root_cause(error)}") from error
    return CapturedWork(graph, work)


def family_replay(family: str) -> CapturedWork:
    """Return a graph of ops of one family."""

    def make() -> Callable[[], None]:
        made = [work.make() for work in first_works() if work.family == family]

        def play() -> None:
            for work in made:
                for call in range(CALLS):
                    work(call)

        return play

    return captured(make)


def back_to_back(replays: Sequence[CapturedWork], seconds: float) -> list[Ran]:
    """Replay them in turn for about ``seconds`` without a pause, each at least once."""
    under_way: deque[tuple[int, torch.cuda.Event]] = deque()
    found: list[Ran] = []
    last = recorded()

    def end() -> torch.cuda.Event:
        which, event = under_way.popleft()
        event.synchronize()
        found.append(Ran(which, time.perf_counter_ns(), since_ns(last, event)))
        return event

    stop_at = time.monotonic() + seconds
    count = 0
    while time.monotonic() < stop_at or count < len(replays):
        which = count % len(replays)
        replays[which].graph.replay()
        under_way.append((which, recorded()))
        count += 1
        if len(under_way) > QUEUED:
            last = end()
    while under_way:
        last = end()
    return found


# Lasting loads ------------------------------------------------------------------------------------
# One family of ops, or all in turn, or nothing; its power, clock and elasticities.

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
