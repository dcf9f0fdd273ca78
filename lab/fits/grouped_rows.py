"""What trainers' grouped GEMMs took: TransformerEngine's on a B200, PyTorch's on our Hoppers.

Ours in FP8 have a scale a row. A GEMM that scales by tensor or by blocks is taken to be as much
slower than that as a single GEMM of its layout is (records ``fp8``): the median of 14 shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any, Final

from lab.fits.common import Sources, rounded
from lab.fits.hopper import over_rowwise
from simulator.lookup.grouped import GroupedRow
from simulator.ops import Gemm

SPREAD: Final = 0.05
"""Of a row that was timed once."""
QUANTIZED_ON: Final = "h200-sxm"
"""The GPU whose grouped GEMMs in FP8 we have."""


def trained_rows(sources: Sources) -> tuple[GroupedRow, ...]:
    """Return TransformerEngine's rows on a B200, sorted.

    Weight gradients were timed twice: those that add to fp32 move 4 bytes an element more, and
    with few rows an expert they take longer by just that. The longer one of a shape is taken for
    that, and a single one, too.
    """
    timed: dict[Gemm, list[float]] = {}
    for row in sources.rows("moe/b200_grouped_gemm_bf16.csv"):
        groups, m, n, k = (int(row[x]) for x in ("groups", "m", "n", "k"))
        made = {
            "fwd": Gemm(m, n, k, groups=groups), "dgrad": Gemm(m, k, n, "dgrad", groups=groups),
            "wgrad": Gemm(n, k, m, "wgrad", groups=groups),
        }[row["stage"]]  # fmt: skip
        timed.setdefault(made, []).append(float(row["us"]))
    return tuple(sorted(_rows(timed.items()), key=lambda row: row.signature))


def _rows(timed: Iterable[tuple[Gemm, list[float]]]) -> Iterator[GroupedRow]:
    for gemm, times in timed:
        parts: dict[bool, list[float]] = {False: times}
        if gemm.layout == "wgrad":
            parts = {True: [max(times)], False: [min(times)] if len(times) > 1 else []}
        for adds, mine in parts.items():
            if mine:
                us = fmean(mine)
                apart_us = max(SPREAD * us, max(mine) - min(mine))
                yield GroupedRow(
                    gemm.groups, gemm.m, gemm.n, gemm.k, gemm.layout, gemm.dtype, adds,
                    rounded(us, 5), rounded(apart_us), 2,
                )  # fmt: skip


def our_rows(gpu: str, sources: Sources) -> tuple[GroupedRow, ...]:
    """Return our rows of experts with as many rows each; their sums overwrite in BF16."""
    cells = [
        cell
        for record in sources.ours("grouped", gpu)
        for cell in record.get("cells", ())
        if cell["even"]
    ]
    return _sorted(cells, "bf16", {})


def quantized_rows(dtype: str, sources: Sources) -> tuple[GroupedRow, ...]:
    """Return the same of our H200 in FP8, scaled as ``dtype`` is."""
    cells = [
        cell
        for record in sources.ours("grouped", QUANTIZED_ON)
        for cell in record.get("quantized", ())
    ]
    slower: dict[str, float] = {one.layout: one.times for one in over_rowwise(dtype, sources)}
    return _sorted(cells, dtype, slower)


def _sorted(
    cells: Iterable[Mapping[str, Any]], dtype: str, slower: Mapping[str, float]
) -> tuple[GroupedRow, ...]:
    found = []
    for cell in cells:
        groups, rows, out, into = len(cell["rows"]), cell["rows"][0], cell["out"], cell["in"]
        ops = (
            Gemm(rows, out, into, groups=groups), Gemm(rows, into, out, "dgrad", groups=groups),
            Gemm(out, into, rows, "wgrad", groups=groups),
        )  # fmt: skip
        found += [
            GroupedRow(
                groups, *one[:3], one.layout, dtype, False,
                rounded(slower.get(one.layout, 1.0) * cell["ns"][one.layout] / 1e3), 0.0, 1,
            )
            for one in ops
            if one.layout in cell["ns"]
        ]  # fmt: skip
    return tuple(sorted(found, key=lambda row: row.signature))
