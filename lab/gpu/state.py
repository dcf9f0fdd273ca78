"""The GPU's clocks, and how to bring them to those of long runs."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from typing import Final

import torch

SUSTAINED_SECONDS: Final = 2.0
_FIELDS: Final = (
    "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active",
)  # fmt: skip


def gpu_state() -> dict[str, str]:
    """Return clocks (MHz), power (W), temperature and the reasons for the clock; empty without
    nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return {}
    query = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if query.returncode:
        return {}
    values = query.stdout.splitlines()[0].split(",")
    return {name: value.strip() for name, value in zip(_FIELDS, values, strict=False)}


class Burner:
    """A large bf16 GEMM, repeated: it brings the GPU to a long run's clock."""

    def __init__(self, size: int = 8192) -> None:
        self.size = size
        self.a, self.b = (
            torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2)
        )
        self.out = torch.empty_like(self.a)

    def tflops(self, seconds: float) -> list[float]:
        """Return the TFLOP/s of batches of eight GEMMs over about ``seconds``, in order."""
        rates = []
        stop_at = time.monotonic() + seconds
        while time.monotonic() < stop_at:
            begin, end = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            begin.record()
            for _ in range(8):
                torch.mm(self.a, self.b, out=self.out)
            end.record()
            end.synchronize()
            rates.append(8 * 2 * self.size**3 / (1e9 * float(begin.elapsed_time(end))))
        return rates


def burst_and_sustained(seconds: float = SUSTAINED_SECONDS) -> dict[str, object]:
    """Return TFLOP/s of the first batches after rest and of a long run's last ones, with clocks."""
    burner = Burner()
    burner.tflops(0.1)
    torch.cuda.synchronize()
    time.sleep(1.0)
    rest = gpu_state()
    burst = burner.tflops(0.02)
    rates = burner.tflops(seconds)
    busy = gpu_state()
    return {
        "burst_tflops": statistics.median(burst[:3]),
        "sustained_tflops": statistics.median(rates[-max(3, len(rates) // 4) :]),
        "at_rest": rest,
        "under_load": busy,
    }


def copy_gb_s(size_bytes: int = 2 << 30) -> float:
    """Return the 1e9 bytes per second that a device-to-device copy reads plus writes."""
    source = torch.empty(size_bytes, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    times = []
    for _ in range(8):
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return 2 * size_bytes / (1e6 * statistics.median(times[2:]))
