"""Peak rates of a machine, as far as its own ops have reached them: bounds for look-ups."""

from __future__ import annotations

from dataclasses import replace

from simulator.ops import Gemm
from simulator.profile import Profile


def with_peaks(profile: Profile) -> Profile:
    """Return ``profile`` with the highest FLOP rate of a GEMM, by dtype, and the highest byte rate
    of a pointwise op. Rates without timings stay as assumed."""
    machine = profile.machine
    tflops: dict[str, float] = {}
    for row in profile.gemm.rows if profile.gemm else ():
        rate = Gemm(row.m, row.n, row.k).flops / row.median_us / 1e6
        tflops[row.dtype] = max(rate, tflops.get(row.dtype, 0.0))
    points = profile.pointwise.rows if profile.pointwise else ()
    gb_s = [(row.bytes_read + row.bytes_written) / row.median_us / 1e3 for row in points]
    return replace(
        profile,
        machine=replace(
            machine,
            peak_tflops={**machine.peak_tflops, **{k: _short(v) for k, v in tflops.items()}},
            memory_bandwidth_gb_s=_short(max(gb_s)) if gb_s else machine.memory_bandwidth_gb_s,
        ),
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")
