"""FP8 on Hopper by our records of an H100 and an H200 (stage ``fp8``): products of backward beside
published forward ones, and what GEMMs that last draw beside BF16's.

Hopper's FP8 operands all lie alike, so that layouts differ in other things: backward has no fast
accumulation, weight gradients come out in fp32, and by blocks both their operands have scales of
1 × 128.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from lab.fits.common import TRANSFER_ERROR, Gpu, Sources, rounded
from lab.linear import Shape, sizes_of
from simulator.lookup.gemm import BACKWARD, Backward, GemmFit
from simulator.lookup.gemm_law import make_law
from simulator.lookup.gemm_stored import StoredCurves
from simulator.ops import Layout
from simulator.power import PowerSection
from simulator.profile import Machine

Row = Mapping[str, Any]
RECIPES: Final = {"fp8_tensor": "tensorwise", "fp8_block": "blockwise"}
"""Math -> its recipe in the records."""
LAYOUTS: Final[tuple[Layout, ...]] = ("forward", *BACKWARD)
WIDER_SUM: Final = 2
"""Bytes of an element that a weight gradient in fp32 writes more than one in BF16."""


class Beside(NamedTuple):
    """GEMMs of our records in one layout: times over the table's of their shape."""

    layout: Layout
    ratios: list[float]

    @property
    def times(self) -> float:
        """The median."""
        return rounded(statistics.median(self.ratios), 3)

    def error(self, times: float) -> float:
        """Return how far single shapes are from ``times``, on average."""
        return rounded(statistics.fmean(abs(one / times - 1) for one in self.ratios), 2)


def fp8_records(sources: Sources, gpu: str) -> list[dict[str, Any]]:
    """Return what stage ``fp8`` recorded on our GPU of this profile."""
    return sources.ours("fp8", gpu)


def beside(fit: GemmFit, machine: Machine, rows: Sequence[Row]) -> Iterator[Beside]:
    """Yield our GEMMs in each layout over the forward ones of ``fit``, which has curves."""
    assert fit.curves is not None
    table = StoredCurves(fit.curves, make_law(fit.law, fit.params, machine.sm_count))
    for layout in LAYOUTS:
        ratios = []
        for row in rows:
            ns = row.get("ns", {}).get(f"{RECIPES[fit.dtype]} {layout}")
            if ns is None:
                continue
            us = 1e-3 * ns - _wider_us(layout, row["shape"], machine)
            ratios.append(us / table.predict(*sizes_of(layout, row["shape"]))[0])
        yield Beside(layout, ratios)


def over_rowwise(dtype: str, sources: Sources) -> Iterator[Beside]:
    """Yield what our H200's GEMMs in ``dtype`` take over those with a scale a row, by layout. These
    write weight gradients in BF16, the others in fp32, which is taken off."""
    h200 = Gpu("h200-sxm")
    rows = [row for row in fp8_records(sources, h200.name) if "ns" in row]
    for layout in LAYOUTS:
        ways = f"{RECIPES[dtype]} {layout}", f"rowwise {layout}"
        ratios = []
        for row in rows:
            if row["ns"].keys() >= set(ways):
                us, rowwise_us = (1e-3 * row["ns"][way] for way in ways)
                us -= _wider_us(layout, row["shape"], h200.machine)
                ratios.append(us / rowwise_us)
        yield Beside(layout, ratios)


def _wider_us(layout: Layout, shape: Shape, machine: Machine) -> float:
    """Return what sums in fp32 cost more than those in BF16."""
    m, n, _ = sizes_of(layout, shape)
    wider = WIDER_SUM * m * n if layout == "wgrad" else 0
    return 1e-3 * wider / machine.memory_bandwidth_gb_s


def with_backward(fit: GemmFit, machine: Machine, rows: Sequence[Row]) -> GemmFit:
    """Return the law of a GPU's table with what our ``rows`` of that GPU show beside it: products
    of backward, and how far forward ones of our library are from it.

    The ratios carry over to the table's libraries as they do from GPU to GPU.
    """
    forward, *others = beside(fit, machine, rows)
    known = (
        Backward(one.layout, one.times, rounded(one.error(one.times) + TRANSFER_ERROR, 2))
        for one in others
    )
    return replace(fit, backward=tuple(known), error=max(fit.error, forward.error(1.0)))


def with_lasting(law: PowerSection, rows: Sequence[Row]) -> PowerSection:
    """Return the law with what GEMMs in FP8 draw, and the clock of their bursts, by a GPU's rows.

    All loads that last run at the cap, so what a kind draws at one clock follows from the clock
    that it kept. Bursts ran as much above it as they were faster.
    """
    lasting = {row["case"].removeprefix("lasting "): row for row in rows if "lasting_ns" in row}
    bf16, draws, clocks = lasting["bf16"], {}, {}
    for math, recipe in RECIPES.items():
        row = lasting[recipe]
        above = (row["power_w"] - law.idle_w) / (bf16["power_w"] - law.idle_w)
        times = above * (bf16["clock_mhz"] / row["clock_mhz"]) ** law.exponent
        kept = (law.cap_w - law.idle_w) / (times * law.family("gemm").draw_w)
        draws[math] = rounded(times, 3)
        clocks[math] = rounded(
            law.boost_mhz * kept ** (1 / law.exponent) * row["lasting_ns"] / _burst_ns(row, rows)
        )
    return replace(law, gemm_draw=draws, gemm_mhz=clocks)


def _burst_ns(row: Row, rows: Sequence[Row]) -> float:
    """Return what the calls of a lasting load took in bursts: all layouts of its shape in turn."""
    recipe = row["case"].removeprefix("lasting ")
    ns = next(one["ns"] for one in rows if "ns" in one and one["shape"] == row["shape"])
    each = statistics.fmean(ns[f"{recipe} {layout}"] for layout in LAYOUTS)
    return float(row["calls"] * each)
