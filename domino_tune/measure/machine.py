"""What machine this is, as far as timings depend on it. No environment, no user names, no paths."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from simulator.profile import Machine

CPU_PEAK_TFLOPS = 0.1
"""Assumed for one thread until a GEMM has been timed (building blocks: about 100 GFLOP/s)."""


def this_machine(ranks: int, backend: str, details: Mapping[str, str]) -> Machine:
    """A CPU machine with ``ranks`` ranks on each node; peaks are refined by what is measured."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return Machine(
        gpu=cpu_name(),
        gpus_per_node=ranks,
        gpu_memory_gib=round(memory_gib / ranks, 3),
        sm_count=1,
        peak_tflops={"fp32": CPU_PEAK_TFLOPS, "fp64": CPU_PEAK_TFLOPS / 2},
        memory_bandwidth_gb_s=10.0,
        backend=backend,
        details={
            "cores": str(os.cpu_count()),
            "kernel": platform.release(),
            "python": platform.python_version(),
            **details,
        },
    )


def cpu_name() -> str:
    """The processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
