"""Blackwell: GEMMs and memory-bound rates of a B200 node by SimuMax; of today's racks and nodes the
GEMMs of an inference planner's collectors, and how far bursts of these are above lasting loads.
Kernels that stream are as on a B200, since the memory is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lab.fits.common import ASSUMED_ERROR, Floats, Gpu, Sources, rounded
from lab.fits.gemm import fit_curves
from lab.fits.measured import transferred
from lab.fits.power import burst_over_lasting
from lab.fits.quantized import Casts
from simulator.lookup.expected import POINTWISE_DEFAULT
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import PointwiseFit as Law
from simulator.power import PowerSection
from simulator.profile import Disagreement, GemmSection, Profile

GIB: Final = 1 << 30
GEMM_SCATTER: Final = 0.04
"""Spread of SimuMax's GEMM rows. The table has 82 weight gradients twice, adding to fp32 and to
bf16: their ratios scatter by 5.5 % (robust) around the median, which is 3.9 % for each of the
two."""
RUNS: Final = 2  # A GEMM row is the mean of several runs; how many is not published
ADDS_TO: Final = {"fp32": True, "bf16": False}
"""Type of a weight gradient's C -> whether we count it as adding. One that adds to bf16 reads and
writes as many bytes as one that writes fp32 once: it stands for those that overwrite."""
BF16: Final = ("bf16_trt_us", "bf16")
LIKE: Final = "copy"  # Op whose fixed cost and range on our H200 those of RATES get


def gemm_rows(sources: Sources) -> tuple[GemmRow, ...]:
    """Return SimuMax's GEMMs, sorted by signature; each has a batch of 1."""
    rows = [
        GemmRow(
            m=row.batch * row.m, n=row.n, k=row.k, layout=row.layout, dtype="bf16",
            accumulate=row.layout == "wgrad" and ADDS_TO[row.out_dtype], strides=(0, 0, 0),
            median_us=row.us, spread_us=rounded(GEMM_SCATTER * row.us), samples=RUNS,
        ) for row in sources.rows("b200/gemm_bf16.csv")
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: row.signature))


def b200_gemms(gpu: Gpu, sources: Sources) -> GemmSection:
    """Return SimuMax's rows, and by how much those of another source differ from them."""
    rows = gemm_rows(sources)
    faster, clock = sources_differ(sources, rows)
    apart = rounded(faster / clock - 1, 2)
    between = gpu.told["gemm"]["between"].format(faster=faster, clock=clock)
    words = gpu.words("gemm", rows=len(rows), faster=faster, clock=clock, apart=apart)
    differ = Disagreement(error=apart, between=between)
    return GemmSection(rows=rows, disagreement=differ, looped=True, provenance=words)


def served_gemms(gpu: Gpu, sources: Sources) -> GemmSection:
    """Return the law of a GPU's BF16 rows with their curves, and by how much collectors differ."""
    table = sources.rows(f"fp8/{gpu.short}_gemm_fp8.csv.gz")
    rows = [(row.m, row.n, row.k, row.bf16_us) for row in table]
    off = np.nanmedian([abs(row.bf16_trt_us / row.bf16_sgl_us - 1) for row in table])
    fit, apart = fit_curves(rows, gpu.machine.sm_count), rounded(float(off), 2)
    differ = Disagreement(error=apart, between=gpu.told["gemm"]["between"])
    words = gpu.words("gemm", fit.error, rows=len(rows), apart=apart)
    return GemmSection(fits=(fit,), disagreement=differ, provenance=words)


def rates_gb_s(sources: Sources) -> dict[str, float]:
    """Return the rate of each kind of memory-bound op, in 1e9 bytes a second."""
    rows = sources.rows("b200/memory_bound.csv")
    return {row.op: rounded(row.gbps * GIB * row.efficiency / 1e9) for row in rows}


def pointwise_fits(gpu: Gpu, sources: Sources, h200: Profile) -> tuple[list[Law], Law]:
    """Return laws of the table's rates and our H200's of others, and that of their fixed cost."""
    rates, assumed = rates_gb_s(sources), transferred(h200, gpu.machine, least_error=ASSUMED_ERROR)
    laws = {law.names[0]: law for law in assumed}
    like = laws[LIKE]
    own = [
        replace(
            like, names=tuple(names), kind="fitted", small_gb_s=rates[rate], knee_bytes=1,
            large_gb_s=rates[rate], error=POINTWISE_DEFAULT.error,
        ) for rate, names in gpu.told["pointwise"]["rates"].items()
    ]  # fmt: skip
    known = {name for law in own for name in law.names}
    others = [law for name, law in laws.items() if name not in known]
    return sorted((*own, *others), key=lambda law: law.names), like


def with_bursts(gpu: Gpu, sources: Sources, section: PowerSection) -> PowerSection:
    """Return the section with the clocks of bursts, by what repeated calls took longer."""
    clock = _burst_mhz(gpu, sources, *BF16)
    rows = [
        row._replace(clock_mhz=clock) if row.family in ("gemm", "attention") else row
        for row in section.row_clocks
    ]
    return replace(section, row_clocks=tuple(rows), gemm_mhz=gemm_mhz(gpu, sources))


def gemm_mhz(gpu: Gpu, sources: Sources) -> dict[str, float]:
    """Return the clock of bursts in FP8 and NVFP4; all scalings of FP8 are alike."""
    tensor = _burst_mhz(gpu, sources, "fp8_tensor_us", "fp8", "fp8_tensor")
    fp4 = _burst_mhz(gpu, sources, "nvfp4_trt_us", "nvfp4", "nvfp4")
    return {"fp8_tensor": tensor, "fp8_block": tensor, "mxfp8": tensor, "nvfp4": fp4}


def _burst_mhz(gpu: Gpu, sources: Sources, *how: str) -> float:
    told = gpu.told["power"]
    slower = burst_over_lasting(_repeated(told["like"], sources, *how))
    return rounded(told["cap"]["lasting_mhz"] * slower)


def _repeated(
    gpu: str, sources: Sources, column: str, dtype: str, math: str = ""
) -> Iterator[tuple[float, float]]:
    """Yield (us in a burst, us repeated) of TensorRT-LLM's GEMMs, without casts to ``math``, which
    the clock does not change."""
    casts, told = Casts(gpu, sources), {"gpu": gpu, "kernel": "trt", "dtype": dtype}
    table = sources.rows(f"fp8/{gpu}_gemm_fp8.csv.gz")
    bursts = {(row.m, row.n, row.k): getattr(row, column) for row in table}
    for row in sources.rows("blackwell/gemm_power.csv.gz", **told):
        burst_us = bursts.get((row.m, row.n, row.k), 0.0)
        if burst_us > 0:
            cast_us = casts.us(math, row.m, row.k) if math else 0.0
            yield burst_us - cast_us, row.us - cast_us


def sources_differ(sources: Sources, rows: Sequence[Any]) -> tuple[float, float]:
    """Return how many times as long looped GEMMs take as bursts, and what the clock explains."""
    table = sources.rows("fp8/b200_gemm_fp8.csv.gz")
    bursts = {(row.m, row.n, row.k): row.bf16_us for row in table}
    ratios: Floats = np.array([
        row.median_us / bursts[row[:3]] for row in rows
        if row.layout == "forward" and row[:3] in bursts
    ])  # fmt: skip
    explained = burst_over_lasting(_repeated("b200", sources, *BF16))
    return rounded(float(np.median(ratios)), 3), rounded(explained, 3)
