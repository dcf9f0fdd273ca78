"""FP8 and NVFP4: laws of GEMMs without the cast of their input, and of casts, of published timings;
on Hopper with our records of an H100 and an H200 (stage ``fp8``).

The tables time a linear layer of an inference server: the cast of its input and the GEMM. What the
cast takes is timed apart, so a GEMM's row is the difference. No table has a transposed copy: it is
taken to cost, by the byte, what a cast does (0.99 to 1.01 times that in our H100's records, 1.12 to
1.18 by blocks). Products of backward are forward ones of their shape: on Hopper times what our GPU
of its kind shows, on Blackwell as they are. Hopper's FP8 operands all lie alike, so that layouts
differ in other things: backward has no fast accumulation, weight gradients come out in fp32, and by
blocks both their operands have scales of 1 × 128.

Nobody timed MXFP8. It is taken for FP8 with a scale a tensor: Blackwell's tensor cores scale the
blocks themselves, at the same rate (NVIDIA's data sheets give one peak for both)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from lab import Shape as Linear
from lab import sizes_of
from lab.fits.common import TRANSFER_ERROR, Floats, Gpu, Sources, rounded
from lab.fits.gemm import Shape, fit_curves
from lab.fits.measured import law_of_sizes
from simulator.lookup.gemm import BACKWARD, Backward, GemmFit
from simulator.lookup.gemm_law import make_law
from simulator.lookup.gemm_table import StoredCurves
from simulator.lookup.pointwise import PointwiseFit
from simulator.ops import Layout
from simulator.power import PowerSection
from simulator.profile import Machine, Profile

Row = Mapping[str, Any]
CAST_NAMES: Final = ("fp8_cast", "fp8_transpose")
CAST_BYTES: Final = 3  # Bytes of an element that the timed cast moves: 2 read, 1 written
WAYS: Final = {"fp8_tensor": ("fp8_tensor_us",), "fp8_block": ("fp8_block_trt_us",
               "fp8_block_sgl_us")}  # fmt: skip
"""Math -> the columns of the table that time it; of several the faster."""
BLACKWELL: Final = {**WAYS, "nvfp4": ("nvfp4_trt_us", "nvfp4_sgl_us")}
MOVED: Final = {"nvfp4": (2 + 0.5 + 1 / 16) / CAST_BYTES}
"""Math -> bytes of its cast over those of the one that was timed, where they differ."""
SEARCHED: Final = frozenset({"nvfp4"})
"""Maths whose kernels the servers chose by short trials, which now and then take a slow one."""
LEAST_US: Final = 1.0  # A difference below this is of two timings that do not belong together
RECIPES: Final = {"fp8_tensor": "tensorwise", "fp8_block": "blockwise"}
"""Math -> its recipe in our records."""
LAYOUTS: Final[tuple[Layout, ...]] = ("forward", *BACKWARD)
WIDER_SUM: Final = 2
"""Bytes of an element that a weight gradient in fp32 writes more than one in BF16."""


class Casts:
    """What a cast of x[m, k] takes of a table's timings, and finding its largest number."""

    def __init__(self, gpu: str, sources: Sources) -> None:
        table = "fp8" if gpu in ("h100", "h200", "b200") else "blackwell"
        rows = sources.rows(f"{table}/casts.csv.gz", gpu=gpu, kernel="trtllm")
        self._least, self._most = rows[0].m, rows[-1].m
        self._cast_us, self._amax_us = (_grid(rows, column) for column in ("cast_us", "amax_us"))
        rows.sort(key=lambda one: (one.m * one.k, one.m))
        sizes = np.array([CAST_BYTES * one.m * one.k for one in rows], np.float64)
        times = np.array([one.cast_us for one in rows])
        self.law: PointwiseFit = law_of_sizes(CAST_NAMES, sizes, times)

    def us(self, dtype: str, m: int, k: int) -> float:
        """Return the time of the cast of x[m, k] for a GEMM in ``dtype``."""
        at = np.log([[min(max(m, self._least), self._most), k]])
        us = MOVED.get(dtype, 1.0) * float(self._cast_us(at)[0])
        return us + (float(self._amax_us(at)[0]) if dtype == "fp8_tensor" else 0.0)


def _grid(casts: Sequence[Any], column: str) -> RegularGridInterpolator:
    ms, ks = (sorted({getattr(one, name) for one in casts}) for name in "mk")
    known = {(one.m, one.k): getattr(one, column) for one in casts}
    ks = [k for k in ks if all((m, k) in known for m in ms)]
    values: Floats = np.array([[known[m, k] for k in ks] for m in ms])
    grid = np.log(ms), np.log(ks)
    return RegularGridInterpolator(grid, values, bounds_error=False, fill_value=None)


def with_quantized(profile: Profile, sources: Sources) -> Profile:
    """Return the profile with the laws of FP8 of its GPU's tables, ``h100`` for ``h100-dgx``."""
    gpu, machine, power = profile.name.partition("-")[0], profile.machine, profile.section("power")
    gemm, pointwise = map(profile.section, ("gemm", "pointwise"))
    casts = Casts(gpu, sources)
    ways = BLACKWELL if machine.fp8_any_layout else WAYS
    found = [_with_curves(gpu, sources, machine.sm_count, casts, *way) for way in ways.items()]
    if machine.fp8_any_layout:
        tensor = next(fit for fit in found if fit.dtype == "fp8_tensor")
        found.append(replace(tensor, dtype="mxfp8", kind="assumed", error=max(0.1, tensor.error)))
    else:
        rows = sources.ours("fp8", profile.name)
        found = [with_backward(fit, machine, rows) for fit in found]
        power = with_lasting(power, rows)
    fits = sorted((*gemm.fits, *found), key=attrgetter("layout", "dtype", "accumulate"))
    return replace(
        profile, power=power, gemm=replace(gemm, fits=tuple(fits)),
        pointwise=replace(pointwise, fits=(*pointwise.fits, casts.law)),
    )  # fmt: skip


def _with_curves(
    gpu: str, sources: Sources, sm_count: int, casts: Casts, dtype: str, columns: Any
) -> GemmFit:
    """Return the law of GEMMs without casts, its error at least what frameworks differ by."""
    rows, apart = [], [0.0]
    for row in sources.rows(f"fp8/{gpu}_gemm_fp8.csv.gz"):
        timed = [us for us in (getattr(row, name, 0.0) for name in columns) if us > 0]
        us = min(timed, default=0.0) - casts.us(dtype, row.m, row.k)
        if us > LEAST_US:
            rows.append((row.m, row.n, row.k, us))
            apart += [timed[0] / timed[1] - 1] if len(timed) == 2 else []
    shapes = no_slower_than_larger(rows) if dtype in SEARCHED else rows
    fit = fit_curves(shapes, sm_count, dtype=dtype)
    return replace(fit, error=max(fit.error, rounded(float(np.median(np.abs(apart))), 2)))


def no_slower_than_larger(rows: Sequence[Shape]) -> list[Shape]:
    """Return the rows no slower than larger ones, whose kernels do the smaller GEMM, too."""
    sizes = [sorted({row[column] for row in rows}) for column in range(3)]
    places = [tuple(map(list.index, sizes, row[:3])) for row in rows]
    times: Floats = np.full([len(one) for one in sizes], np.inf)
    times[tuple(np.array(places).T)] = [row[3] for row in rows]
    for axis in range(3):
        times = np.flip(np.minimum.accumulate(np.flip(times, axis), axis), axis)
    return [
        (m, n, k, float(times[place])) for (m, n, k, _), place in zip(rows, places, strict=True)
    ]


class Beside(NamedTuple):
    """GEMMs of our records in one layout: times over others of their shape."""

    layout: Layout
    ratios: list[float]

    @property
    def times(self) -> float:
        """The median."""
        return rounded(statistics.median(self.ratios), 3)

    def error(self, times: float) -> float:
        """Return how far single shapes are from ``times``, on average."""
        return rounded(statistics.fmean(abs(one / times - 1) for one in self.ratios), 2)


def beside(fit: GemmFit, machine: Machine, rows: Sequence[Row]) -> Iterator[Beside]:
    """Yield our GEMMs in each layout over the forward ones of ``fit``, which has curves."""
    assert fit.curves is not None
    table = StoredCurves(fit.curves, make_law(fit.law, fit.params, machine.sm_count))
    for layout in LAYOUTS:
        way = f"{RECIPES[fit.dtype]} {layout}"
        mine = [row for row in rows if way in row.get("ns", {})]
        sizes = [sizes_of(layout, row["shape"]) for row in mine]
        yield Beside(layout, [
            _narrow_us(layout, row, way, machine) / table.predict(*each)[0]
            for row, each in zip(mine, sizes, strict=True)
        ])  # fmt: skip


def over_rowwise(dtype: str, sources: Sources) -> Iterator[Beside]:
    """Yield our H200's GEMMs over those with a scale a row, by layout, sums all in BF16."""
    h200 = Gpu("h200-sxm")
    rows = [row for row in sources.ours("fp8", h200.name) if "ns" in row]
    for layout in LAYOUTS:
        way, rowwise = f"{RECIPES[dtype]} {layout}", f"rowwise {layout}"
        yield Beside(layout, [
            _narrow_us(layout, row, way, h200.machine) / (1e-3 * row["ns"][rowwise])
            for row in rows if row["ns"].keys() >= {way, rowwise}
        ])  # fmt: skip


def _narrow_us(layout: Layout, row: Row, way: str, machine: Machine) -> float:
    """Return what a GEMM of our records takes, less what sums in fp32 cost more than in BF16."""
    shape: Linear = row["shape"]
    m, n, _ = sizes_of(layout, shape)
    wider = WIDER_SUM * m * n if layout == "wgrad" else 0
    return float(1e-3 * row["ns"][way] - 1e-3 * wider / machine.memory_bandwidth_gb_s)


def with_backward(fit: GemmFit, machine: Machine, rows: Sequence[Row]) -> GemmFit:
    """Return the law with what our ``rows`` show: products of backward, and how far forward ones of
    our library are from the table's; the ratios carry over."""
    forward, *others = beside(fit, machine, rows)
    known = (
        Backward(one.layout, one.times, rounded(one.error(one.times) + TRANSFER_ERROR, 2))
        for one in others
    )
    return replace(fit, backward=tuple(known), error=max(fit.error, forward.error(1.0)))


def with_lasting(law: PowerSection, rows: Sequence[Row]) -> PowerSection:
    """Return the law with what GEMMs in FP8 draw, and the clock of their bursts, by a GPU's rows.
    All loads that last run at the cap, so what a kind draws at one clock follows from the clock
    that it kept. Bursts ran as much above it as they were faster: all layouts of its shape in
    turn."""
    lasting = {row["case"].removeprefix("lasting "): row for row in rows if "lasting_ns" in row}
    bf16, draws, clocks = lasting["bf16"], {}, {}
    for math, recipe in RECIPES.items():
        row = lasting[recipe]
        above = (row["power_w"] - law.idle_w) / (bf16["power_w"] - law.idle_w)
        times = above * (bf16["clock_mhz"] / row["clock_mhz"]) ** law.exponent
        kept = (law.cap_w - law.idle_w) / (times * law.family("gemm").draw_w)
        ns = next(one["ns"] for one in rows if "ns" in one and one["shape"] == row["shape"])
        burst_ns = row["calls"] * statistics.fmean(ns[f"{recipe} {layout}"] for layout in LAYOUTS)
        draws[math] = rounded(times, 3)
        slower = row["lasting_ns"] / float(burst_ns)
        clocks[math] = rounded(law.boost_mhz * kept ** (1 / law.exponent) * slower)
    return replace(law, gemm_draw=draws, gemm_mhz=clocks)
