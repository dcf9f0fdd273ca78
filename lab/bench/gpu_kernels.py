"""What a GPU's records say of kernels by themselves: gaps, FP8 by recipe, casts, experts, and GEMMs
that begin after a collective."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from domino_tune.base.tables import Table
from lab.verdict import at_least, check_table, reported, table

Row = Mapping[str, Any]
COPY: Final = "copy bf16"
LEAST_SHARE: Final = 0.85
"""Target of our kernels' bytes a second over those of a copy of the same tensor."""
LARGE_BYTES: Final = 100e6
FIRST: Final = "before"
"""The collective arrives before the GEMM and has its SMs."""
WAYS: Final = ("forward", "dgrad", "wgrad", "one forward", "one dgrad")


def _size(shape: Iterable[int]) -> str:
    return " × ".join(f"{one:,}" for one in shape)


def gap_tables(rows: Sequence[Row]) -> list[Table]:
    """Return chains of one kernel, then steps: whole, the sum of their ops, and the gaps."""
    keys = ("kernel_ns", "graph_ns", "launch_ns")
    chains = [
        (name, *(f"{one[key] / 1e3:.2f}" for key in keys), f"{one['gap_ns']:.0f}")
        for row in rows for name, one in row.get("chains", {}).items()
    ]  # fmt: skip
    return [
        table(
            "200 of one kernel in a row",
            "kernel|>itself, us|>in a graph, us|>launched, us|>gap in a graph, ns", chains,
        ),
        table(
            "A step of layers in sequence",
            "step|>kernels|>graph, us|>kernels, us|>gaps, us|>median gap, ns|>gaps over 2 us"
            "|>eager, us|>ops' bursts, us",
            [_step(row) for row in rows if "graph_kernels" in row],
            "Kernels and gaps as the profiler saw the last of three replays. Ops' bursts: the sum "
            "of what ops take between events, the host ahead.",
        ),
    ]  # fmt: skip


def _step(row: Row) -> tuple[object, ...]:
    kernels = row["graph_kernels"]
    gaps = [after[0] - before[0] - before[1] for before, after in pairwise(kernels)]
    return (
        row["case"], len(kernels), f"{row['graph_us']:,.0f}",
        f"{sum(kernel[1] for kernel in kernels) / 1e3:,.0f}", f"{sum(gaps) / 1e3:,.0f}",
        f"{statistics.median(gaps):.0f}", sum(gap > 2000 for gap in gaps),
        f"{row['eager_us']:,.0f}", f"{sum(row['by_kind_us'].values()):,.0f}",
    )  # fmt: skip


def fp8_tables(rows: Sequence[Row]) -> list[Table]:
    """Return lasting loads, GEMMs by recipe, and casts against a copy."""
    gemms = [row for row in rows if row["case"].startswith("gemms ")]
    names = list(dict.fromkeys(name for row in gemms for name in row["ns"]))
    lasting = [
        (row["case"].removeprefix("lasting "), f"{row['clock_mhz']:,.0f}", f"{row['power_w']:.0f}",
         *(_tflops(row["shape"], row[key] / row["calls"]) for key in ("lasting_ns", "first_ns")))
        for row in rows if "lasting_ns" in row
    ]  # fmt: skip
    rates = [
        (_size(row["shape"]), *(_tflops(row["shape"], row["ns"].get(name)) for name in names))
        for row in gemms
    ]
    return [
        table("GEMMs that last, by recipe", "recipe|>MHz|>W|>TFLOP/s|>TFLOP/s at first", lasting),
        table("GEMMs by recipe, TFLOP/s in bursts", f"tokens × out × in|>{'|>'.join(names)}",
              rates),
        *_cast_tables([row for row in rows if "casts" in row]),
    ]  # fmt: skip


def _tflops(shape: Sequence[int], took_ns: float | None) -> str:
    return f"{2 * math.prod(shape) / took_ns / 1e3:.0f}" if took_ns else "-"


def _cast_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the casts' bytes a second, and our kernels' over a copy's."""
    names = list(dict.fromkeys(name for row in rows for name in row["casts"]))
    shares: dict[str, list[float]] = defaultdict(list)
    lines = []
    for row in rows:
        rates = {name: one["bytes"] / one["ns"] for name, one in row["casts"].items()}
        lines.append((_size(row["shape"]), *(f"{rates[name]:,.0f}" for name in names)))
        for name in names:
            if row["casts"][COPY]["bytes"] > LARGE_BYTES and name != COPY:
                shares[name].append(rates[name] / rates[COPY])
    checks = (
        at_least(name, LEAST_SHARE, min(found)) if name.startswith("cast ") or name == "cast"
        else reported(name, f"{min(found):.0%}") for name, found in shares.items()
    )  # fmt: skip
    columns = "|>".join(["rows × columns", *names])
    return [
        table("Casts to FP8, GB/s of what must move", columns, lines),
        check_table("Least share of a copy's bytes a second, above 100 MB", checks),
    ]


def grouped_tables(rows: Iterable[Row]) -> list[Table]:
    """Return grouped GEMMs by rows an expert, and permutations."""
    cells, ways = [], []
    for row in rows:
        for cell in row.get("cells", ()):
            each, shape = cell["rows"], (sum(cell["rows"]), cell["out"], cell["in"])
            cells.append((
                row["model"], cell["layer"], len(each), f"{shape[0] / len(each):,.0f}",
                "alike" if cell["even"] else f"{min(each):,}–{max(each):,}",
                *(_tflops(shape, cell["ns"].get(name)) for name in WAYS),
            ))  # fmt: skip
        for name, one in row.get("ways", {}).items():
            rate = f"{one['bytes'] / one['ns']:,.0f}" if one["bytes"] else "-"
            ways.append((row["model"], name, f"{one['ns'] / 1e3:.1f}", rate))
    return [
        table(
            "Grouped GEMMs of a rank's experts, TFLOP/s in bursts",
            "model|layer|>experts|>mean rows|rows|>forward|>dgrad|>wgrad|>one GEMM|>its dgrad",
            cells,
        ),
        table(
            "Tokens to experts and back, and the router",
            "model|way|>us|>GB/s of what must move", ways,
        ),
    ]  # fmt: skip


def first_table(rows: Iterable[Row]) -> Table:
    """Return by how much a GEMM is longer whose SMs a collective already has, by its CTAs."""
    lines = []
    for row in rows:
        cells = [cell for cell in row["cells"] if cell["arrival"] == FIRST]
        if row["kind"] == "library" and cells:
            longer = (cell["gemms_ns"][0] - row["alone_ns"] for cell in cells)
            times = (f"{one / 1e3:.1f}" for one in (row["alone_ns"], *longer))
            lines.append((_size(row["shape"]), *times))
    return table(
        "A GEMM after a collective of 150 us: us longer than alone",
        "tokens × out × in|>alone, us|>4 CTAs|>16 CTAs|>32 CTAs|>4, with bytes|>16, with bytes"
        "|>32, with bytes", lines,
    )  # fmt: skip
