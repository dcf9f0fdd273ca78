"""The GPU's clocks, and how to bring them to those of long runs."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Final

import torch

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


def heat(seconds: float = 2.0) -> None:
    """Bring the GPU to a long run's clock: a large bf16 GEMM, repeated for about ``seconds``."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    stop_at = time.monotonic() + seconds
    while time.monotonic() < stop_at:
        for _ in range(8):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
