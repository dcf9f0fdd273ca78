"""FP8: laws of GEMMs without the cast of their input, and of casts, from published timings.

The tables time a linear layer of an inference server: the cast of its input and the GEMM. What the
cast takes is timed apart, so a GEMM's row is the difference. No table has a transposed copy: it is
taken to cost, by the byte, what a cast does. Products of backward are taken for forward ones of
their shape, since all operands of an FP8 GEMM lie alike on Hopper.
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
from lab.fits.gemm import fit_gemm
from lab.fits.pointwise import law_of_sizes
from simulator.lookup.gemm import GemmFit
from simulator.lookup.pointwise import PointwiseFit
from simulator.profile import Profile

CAST_NAMES: Final = ("fp8_cast", "fp8_transpose")
CAST_BYTES: Final = 3
"""Bytes of an element that the timed cast moves: 2 read, 1 written."""
WAYS: Final = {"fp8_tensor": ("fp8_tensor_us",), "fp8_block": ("fp8_block_trt_us",
               "fp8_block_sgl_us")}  # fmt: skip
"""Math -> the columns of the table that time it; of several the faster."""
LEAST_US: Final = 1.0
"""A difference below this is of two timings that do not belong together."""


class Cast(NamedTuple):
    """One timed cast of x[m, k]; ``amax_us``: what finding its largest number takes more."""

    m: int
    k: int
    amax_us: float
    cast_us: float


def quantized_fits(gpu: str, sources: Sources, sm_count: int) -> list[GemmFit]:
    """Return the law of each math of the GPU's table."""
    casts = list(_casts(gpu, sources))
    cast_us, amax_us = (_grid(casts, column) for column in ("cast_us", "amax_us"))
    found = []
    for dtype, columns in WAYS.items():
        rows = []
        for row in _rows(sources, f"fp8/{gpu}_gemm_fp8.csv.gz"):
            timed = [float(row[name]) for name in columns if row.get(name)]
            m, n, k = (int(row[name]) for name in "mnk")
            at = np.log([[min(max(m, casts[0].m), casts[-1].m), k]])
            us = min(timed, default=0.0) - float(cast_us(at)[0])
            us -= float(amax_us(at)[0]) if dtype == "fp8_tensor" else 0.0
            if us > LEAST_US:
                rows.append((m, n, k, us))
        found.append(fit_gemm(rows, sm_count, dtype=dtype))
    return found


def cast_law(gpu: str, sources: Sources) -> PointwiseFit:
    """Return the law of a GPU's casts."""
    rows = sorted(_casts(gpu, sources), key=lambda one: (one.m * one.k, one.m))
    sizes = np.array([CAST_BYTES * one.m * one.k for one in rows], np.float64)
    return law_of_sizes(CAST_NAMES, sizes, np.array([one.cast_us for one in rows]))


def _casts(gpu: str, sources: Sources) -> Iterator[Cast]:
    for row in _rows(sources, "fp8/casts.csv.gz"):
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


def _rows(sources: Sources, table: str) -> Iterator[dict[str, str]]:
    text = gzip.decompress(sources.table(table)).decode("utf-8")
    lines = (line for line in io.StringIO(text) if not line.startswith("#"))
    yield from csv.DictReader(lines)


def with_quantized(profile: Profile, sources: Sources) -> Profile:
    """Return the profile with the laws of FP8 of its GPU's tables, ``h100`` for ``h100-dgx``."""
    gpu = profile.name.partition("-")[0]
    gemm, pointwise = profile.section("gemm"), profile.section("pointwise")
    gemms = quantized_fits(gpu, sources, profile.machine.sm_count)
    order = attrgetter("layout", "dtype", "accumulate")
    return replace(
        profile,
        gemm=replace(gemm, fits=tuple(sorted((*gemm.fits, *gemms), key=order))),
        pointwise=replace(pointwise, fits=(*pointwise.fits, cast_law(gpu, sources))),
    )
