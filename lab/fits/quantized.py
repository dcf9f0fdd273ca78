"""FP8 and NVFP4: laws of GEMMs without the cast of their input, and of casts, of published timings.

The tables time a linear layer of an inference server: the cast of its input and the GEMM. What the
cast takes is timed apart, so a GEMM's row is the difference. No table has a transposed copy: it is
taken to cost, by the byte, what a cast does (0.99 to 1.01 times that in our H100's records, 1.12 to
1.18 by blocks). Products of backward are forward ones of their shape: on Hopper times what our GPU
of its kind shows (``hopper``), on Blackwell as they are.

Nobody timed MXFP8. It is taken for FP8 with a scale a tensor: Blackwell's tensor cores scale the
blocks themselves, at the same rate (NVIDIA's data sheets give one peak for both).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from lab.fits.common import Floats, Sources, rounded
from lab.fits.gemm import Shape, fit_curves
from lab.fits.hopper import fp8_records, with_backward, with_lasting
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
SEARCHED: Final = frozenset({"nvfp4"})
"""Maths whose kernels the servers chose by short trials, which now and then take a slow one."""
MXFP8_ERROR: Final = 0.1
LEAST_US: Final = 1.0
"""A difference below this is of two timings that do not belong together."""


class Cast(NamedTuple):
    """One timed cast of x[m, k]; ``amax_us``: what finding its largest number takes more."""

    m: int
    k: int
    amax_us: float
    cast_us: float


class Casts:
    """What the cast of a linear layer's input takes of a table's timings."""

    def __init__(self, gpu: str, sources: Sources) -> None:
        rows = list(_casts(gpu, sources))
        self._least, self._most = rows[0].m, rows[-1].m
        self._cast_us, self._amax_us = (_grid(rows, column) for column in ("cast_us", "amax_us"))

    def us(self, dtype: str, m: int, k: int) -> float:
        """Return the time of the cast of x[m, k] for a GEMM in ``dtype``."""
        at = np.log([[min(max(m, self._least), self._most), k]])
        us = MOVED.get(dtype, 1.0) * float(self._cast_us(at)[0])
        return us + (float(self._amax_us(at)[0]) if dtype == "fp8_tensor" else 0.0)


def quantized_fits(name: str, sources: Sources, machine: Machine) -> list[GemmFit]:
    """Return the law of each math of the table of a profile's GPU, with the rows' curves."""
    gpu = name.partition("-")[0]
    if not machine.fp8_any_layout:
        rows = fp8_records(sources, name)
        found = _with_curves(gpu, sources, machine, WAYS)
        return [with_backward(fit, machine, rows) for fit in found]
    found = _with_curves(gpu, sources, machine, BLACKWELL)
    tensor = next(fit for fit in found if fit.dtype == "fp8_tensor")
    error = max(MXFP8_ERROR, tensor.error)
    return [*found, replace(tensor, dtype="mxfp8", kind="assumed", error=error)]


def _with_curves(
    gpu: str, sources: Sources, machine: Machine, ways: Mapping[str, Sequence[str]]
) -> list[GemmFit]:
    """Return the laws of the table; no error is less than what two frameworks differ by."""
    found = []
    for dtype, columns in ways.items():
        one = _products(gpu, sources, dtype, columns)
        shapes = no_slower_than_larger(one.rows) if dtype in SEARCHED else one.rows
        fit = fit_curves(shapes, machine.sm_count, dtype=dtype)
        found.append(replace(fit, error=max(fit.error, one.apart)))
    return found


class Products(NamedTuple):
    """GEMMs in ``dtype`` without casts, and by how much two frameworks' of a shape differ."""

    dtype: str
    rows: list[Shape]
    apart: float


def _products(gpu: str, sources: Sources, dtype: str, columns: Sequence[str]) -> Products:
    casts, rows, apart = Casts(gpu, sources), [], [0.0]
    for row in sources.rows(f"fp8/{gpu}_gemm_fp8.csv.gz"):
        timed = [float(row[name]) for name in columns if row.get(name)]
        m, n, k = (int(row[name]) for name in "mnk")
        us = min(timed, default=0.0) - casts.us(dtype, m, k)
        if us > LEAST_US:
            rows.append((m, n, k, us))
            apart += [timed[0] / timed[1] - 1] if len(timed) == 2 else []
    return Products(dtype, rows, rounded(float(np.median(np.abs(apart))), 2))


def no_slower_than_larger(rows: Sequence[Shape]) -> list[Shape]:
    """Return the rows with the time of the fastest one that is as large or larger in each size:
    its kernel does the smaller GEMM, too."""
    sizes = [sorted({row[column] for row in rows}) for column in range(3)]
    places = [tuple(map(list.index, sizes, row[:3])) for row in rows]
    times: Floats = np.full([len(one) for one in sizes], np.inf)
    times[tuple(np.array(places).T)] = [row[3] for row in rows]
    for axis in range(3):
        times = np.flip(np.minimum.accumulate(np.flip(times, axis), axis), axis)
    return [
        (m, n, k, float(times[place])) for (m, n, k, _), place in zip(rows, places, strict=True)
    ]


def cast_law(gpu: str, sources: Sources) -> PointwiseFit:
    """Return the law of a GPU's casts."""
    rows = sorted(_casts(gpu, sources), key=lambda one: (one.m * one.k, one.m))
    sizes = np.array([CAST_BYTES * one.m * one.k for one in rows], np.float64)
    return law_of_sizes(CAST_NAMES, sizes, np.array([one.cast_us for one in rows]))


def _casts(gpu: str, sources: Sources) -> Iterator[Cast]:
    table = "fp8" if gpu in ("h100", "h200", "b200") else "blackwell"
    for row in sources.rows(f"{table}/casts.csv.gz"):
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


def with_quantized(profile: Profile, sources: Sources) -> Profile:
    """Return the profile with the laws of FP8 of its GPU's tables, ``h100`` for ``h100-dgx``."""
    gpu = profile.name.partition("-")[0]
    gemm, pointwise, power = map(profile.section, ("gemm", "pointwise", "power"))
    gemms = quantized_fits(profile.name, sources, profile.machine)
    order = attrgetter("layout", "dtype", "accumulate")
    if not profile.machine.fp8_any_layout:
        power = with_lasting(power, fp8_records(sources, profile.name))
    return replace(
        profile,
        power=power,
        gemm=replace(gemm, fits=tuple(sorted((*gemm.fits, *gemms), key=order))),
        pointwise=replace(pointwise, fits=(*pointwise.fits, cast_law(gpu, sources))),
    )
