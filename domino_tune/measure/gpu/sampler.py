"""A sampler of one GPU's clock and power through NVML, in a thread alongside the work.

Power is the instantaneous value (NVML_FI_DEV_POWER_INSTANT), not the mean over the last second that
nvidia-smi shows; joules come from the driver's counter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple

import torch

from domino_tune.base.errors import RunError

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
    and its power cap.
    """

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
