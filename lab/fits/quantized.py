"""FP8 and NVFP4: laws of GEMMs without the cast of their input, and of casts, of published timings.

The tables time a linear layer of an inference server: the cast of its input and the GEMM. What the
cast takes is timed apart, so a GEMM's row is the difference. No table has a transposed copy: it is
taken to cost, by the byte, what a cast does. Products of backward are taken for forward ones of
their shape, since all operands of an FP8 GEMM lie alike on Hopper, and as they are on Blackwell.

Nobody timed MXFP8. It is taken for FP8 with a scale a tensor: Blackwell's tensor cores scale the
blocks themselves, at the same rate (NVIDIA's data sheets give one peak for both).
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from lab.fits.common import Floats, Sources
from lab.fits.gemm import fit_curves, fit_gemm
from lab.fits.pointwise import law_of_sizes
from simulator.lookup.gemm import GemmFit
from simulator.lookup.pointwise import PointwiseFit
from simulator.profile import Machine, Profile

CAST_NAMES: Final = ("fp8_cast", "fp8_transpose")
CAST_BYTES: Final = 3
"""Bytes of an element that the timed cast moves: 2 read, 1 written."""
WAYS: Final = {"fp8_tensor": ("fp8_tensor_us",), "fp8_block": ("fp8_block_trt_us",
               "fp8_block_sgl_us")}  # fmt: skip
"""Math -> the columns of the table that time it; of several the faster."""
BLACKWELL: Final = {**WAYS, "nvfp4": ("nvfp4_trt_us", "nvfp4_sgl_us")}
MOVED: Final = {"nvfp4": (2 + 0.5 + 1 / 16) / CAST_BYTES}
"""Math -> bytes of its cast over those of the one that was timed, where they differ."""
MXFP8_ERROR: Final = 0.1
LEAST_US: Final = 1.0
"""A difference below this is of two timings that do not belong together."""


class Cast(NamedTuple):
    """One timed cast of x[m, k]; ``amax_us``: what finding its largest number takes more."""

    m: int
    k: int
    amax_us: float
    cast_us: float


def quantized_fits(gpu: str, sources: Sources, machine: Machine) -> list[GemmFit]:
    """Return the law of each math of the GPU's table, on Blackwell with the rows' curves."""
    ways, sm_count = BLACKWELL if machine.fp8_any_layout else WAYS, machine.sm_count
    casts = list(_casts(gpu, sources))
    cast_us, amax_us = (_grid(casts, column) for column in ("cast_us", "amax_us"))
    found = []
    for dtype, columns in ways.items():
        rows = []
        for row in table_rows(sources, f"fp8/{gpu}_gemm_fp8.csv.gz"):
            timed = [float(row[name]) for name in columns if row.get(name)]
            m, n, k = (int(row[name]) for name in "mnk")
            at = np.log([[min(max(m, casts[0].m), casts[-1].m), k]])
            us = min(timed, default=0.0) - MOVED.get(dtype, 1.0) * float(cast_us(at)[0])
            us -= float(amax_us(at)[0]) if dtype == "fp8_tensor" else 0.0
            if us > LEAST_US:
                rows.append((m, n, k, us))
        fit = fit_curves if ways is BLACKWELL else fit_gemm
        found.append(fit(rows, sm_count, dtype=dtype))
    if ways is BLACKWELL:
        tensor = next(fit for fit in found if fit.dtype == "fp8_tensor")
        error = max(MXFP8_ERROR, tensor.error)
        found.append(replace(tensor, dtype="mxfp8", kind="assumed", error=error))
    return found


def cast_law(gpu: str, sources: Sources) -> PointwiseFit:
    """Return the law of a GPU's casts."""
    rows = sorted(_casts(gpu, sources), key=lambda one: (one.m * one.k, one.m))
    sizes = np.array([CAST_BYTES * one.m * one.k for one in rows], np.float64)
    return law_of_sizes(CAST_NAMES, sizes, np.array([one.cast_us for one in rows]))


def _casts(gpu: str, sources: Sources) -> Iterator[Cast]:
    table = "fp8" if gpu in ("h100", "h200", "b200") else "blackwell"
    for row in table_rows(sources, f"{table}/casts.csv.gz"):
        if (row["gpu"], row["kernel"]) == (gpu, "trtllm"):
            amax_us, cast_us = float(row["amax_us"]), float(row["cast_us"])
            yield Cast(int(row["m"]), int(row["k"]), amax_us, cast_us)


def _grid(casts: list[Cast], column: str) -> RegularGridInterpolator:
    """Return a column over log m and log k, as far as the table has all pairs of them."""
    ms, ks = (sorted({getattr(one, name) for one in casts}) for name in "mk")
    known = {(one.m, one.k): getattr(one, column) for one in casts}
    ks = [k for k in ks if all((m, k) in known for m in ms)]
    values: Floats = np.array([[known[m, k] for k in ks] for m in ms])
    return RegularGridInterpolator(
        (np.log(ms), np.log(ks)), values, bounds_error=False, fill_value=None
    )


def table_rows(sources: Sources, table: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a gzipped table, as text."""
    text = gzip.decompress(sources.table(table)).decode("utf-8")
    lines = (line for line in io.StringIO(text) if not line.startswith("#"))
    yield from csv.DictReader(lines)


def with_quantized(profile: Profile, sources: Sources) -> Profile:
    """Return the profile with the laws of FP8 of its GPU's tables, ``h100`` for ``h100-dgx``."""
    gpu = profile.name.partition("-")[0]
    gemm, pointwise = profile.section("gemm"), profile.section("pointwise")
    gemms = quantized_fits(gpu, sources, profile.machine)
    order = attrgetter("layout", "dtype", "accumulate")
    return replace(
        profile,
        gemm=replace(gemm, fits=tuple(sorted((*gemm.fits, *gemms), key=order))),
        pointwise=replace(pointwise, fits=(*pointwise.fits, cast_law(gpu, sources))),
    )
