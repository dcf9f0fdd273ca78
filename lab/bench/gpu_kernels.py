"""What a GPU's records say of kernels by themselves: gaps, FP8 by recipe, casts, experts, and GEMMs
that begin after a collective."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from domino_tune.base.tables import Table
from lab.verdict import Check, at_least, check_table, reported

Row = Mapping[str, Any]
COPY: Final = "copy bf16"
LEAST_SHARE: Final = 0.85
"""Target of our kernels' bytes a second over those of a copy of the same tensor."""
LARGE_BYTES: Final = 100e6
FIRST: Final = "before"
"""The collective arrives before the GEMM and has its SMs."""


def gap_tables(rows: Sequence[Row]) -> list[Table]:
    """Return chains of one kernel, then steps: whole, the sum of their ops, and the gaps."""
    chains = [
        (name, *(f"{one[key] / 1e3:.2f}" for key in ("kernel_ns", "graph_ns", "launch_ns")),
         f"{one['gap_ns']:.0f}")
        for row in rows for name, one in row.get("chains", {}).items()
    ]  # fmt: skip
    steps = [_step(row) for row in rows if "graph_kernels" in row]
    return [
        Table(
            title="200 of one kernel in a row",
            columns=(
                "kernel", ">itself, us", ">in a graph, us", ">launched, us", ">gap in a graph, ns"
            ),
            rows=chains,
        ),
        Table(
            title="A step of layers in sequence",
            columns=(
                "step", ">kernels", ">graph, us", ">kernels, us", ">gaps, us", ">median gap, ns",
                ">gaps over 2 us", ">eager, us", ">ops' bursts, us",
            ),
            rows=steps,
            notes=(
                "Kernels and gaps as the profiler saw the last of three replays. Ops' bursts: the "
                "sum of what ops take between events, the host ahead.",
            ),
        ),
    ]  # fmt: skip


def _step(row: Row) -> tuple[str, ...]:
    kernels = row["graph_kernels"]
    gaps = [after[0] - before[0] - before[1] for before, after in pairwise(kernels)]
    return (
        row["case"], str(len(kernels)), f"{row['graph_us']:,.0f}",
        f"{sum(kernel[1] for kernel in kernels) / 1e3:,.0f}", f"{sum(gaps) / 1e3:,.0f}",
        f"{statistics.median(gaps):.0f}", str(sum(gap > 2000 for gap in gaps)),
        f"{row['eager_us']:,.0f}", f"{sum(row['by_kind_us'].values()):,.0f}",
    )  # fmt: skip


def fp8_tables(rows: Sequence[Row]) -> list[Table]:
    """Return lasting loads, GEMMs by recipe, and casts against a copy."""
    gemms = [row for row in rows if row["case"].startswith("gemms ")]
    names = list(dict.fromkeys(name for row in gemms for name in row["ns"]))
    rates = [
        (" × ".join(f"{one:,}" for one in row["shape"]), *(_rate(row, name) for name in names))
        for row in gemms
    ]
    lasting = [
        (row["case"].removeprefix("lasting "), f"{row['clock_mhz']:,.0f}", f"{row['power_w']:.0f}",
         f"{_tflops(row['shape'], row['lasting_ns'] / row['calls']):.0f}",
         f"{_tflops(row['shape'], row['first_ns'] / row['calls']):.0f}")
        for row in rows if "lasting_ns" in row
    ]  # fmt: skip
    return [
        Table(
            title="GEMMs that last, by recipe",
            columns=("recipe", ">MHz", ">W", ">TFLOP/s", ">TFLOP/s at first"), rows=lasting,
        ),
        Table(
            title="GEMMs by recipe, TFLOP/s in bursts", columns=("tokens × out × in", *(
                f">{name}" for name in names)), rows=rates,
        ),
        *cast_tables([row for row in rows if "casts" in row]),
    ]  # fmt: skip


def _rate(row: Row, name: str) -> str:
    return f"{_tflops(row['shape'], row['ns'][name]):.0f}" if name in row["ns"] else "-"


def _tflops(shape: Sequence[int], took_ns: float) -> float:
    return 2 * shape[0] * shape[1] * shape[2] / took_ns / 1e3


def cast_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the casts' bytes a second, and our kernels' over a copy's."""
    names = list(dict.fromkeys(name for row in rows for name in row["casts"]))
    shares: dict[str, list[float]] = defaultdict(list)
    shown = []
    for row in rows:
        rates = {name: one["bytes"] / one["ns"] for name, one in row["casts"].items()}
        shown.append((" × ".join(f"{one:,}" for one in row["shape"]),
                      *(f"{rates[name]:,.0f}" for name in names)))  # fmt: skip
        for name in names:
            if row["casts"][COPY]["bytes"] > LARGE_BYTES:
                shares[name].append(rates[name] / rates[COPY])
    casts = Table(
        title="Casts to FP8, GB/s of what must move",
        columns=("rows × columns", *(f">{name}" for name in names)), rows=shown,
    )  # fmt: skip
    checks: list[Check] = [
        at_least(name, LEAST_SHARE, min(found)) if name.startswith("cast ") or name == "cast"
        else reported(name, f"{min(found):.0%}")
        for name, found in shares.items() if name != COPY
    ]  # fmt: skip
    return [casts, check_table("Least share of a copy's bytes a second, above 100 MB", checks)]


def grouped_tables(rows: Iterable[Row]) -> list[Table]:
    """Return grouped GEMMs by rows an expert, and permutations."""
    cells, ways = [], []
    for row in rows:
        for cell in row.get("cells", ()):
            size = 2 * sum(cell["rows"]) * cell["out"] * cell["in"]
            cells.append((
                row["model"], cell["layer"], str(len(cell["rows"])),
                f"{sum(cell['rows']) / len(cell['rows']):,.0f}",
                "alike" if cell["even"] else f"{min(cell['rows']):,}–{max(cell['rows']):,}",
                *(f"{size / cell['ns'][name] / 1e3:.0f}" if name in cell["ns"] else "-"
                  for name in ("forward", "dgrad", "wgrad", "one forward", "one dgrad")),
            ))  # fmt: skip
        for name, one in row.get("ways", {}).items():
            rate = f"{one['bytes'] / one['ns']:,.0f}" if one["bytes"] else "-"
            ways.append((row["model"], name, f"{one['ns'] / 1e3:.1f}", rate))
    return [
        Table(
            title="Grouped GEMMs of a rank's experts, TFLOP/s in bursts",
            columns=(
                "model", "layer", ">experts", ">mean rows", "rows", ">forward", ">dgrad", ">wgrad",
                ">one GEMM", ">its dgrad",
            ),
            rows=cells,
        ),
        Table(
            title="Tokens to experts and back, and the router",
            columns=("model", "way", ">us", ">GB/s of what must move"), rows=ways,
        ),
    ]  # fmt: skip


def first_table(rows: Iterable[Row]) -> Table:
    """Return by how much a GEMM is longer whose SMs a collective already has, by its CTAs."""
    made = []
    for row in rows:
        cells = [cell for cell in row["cells"] if cell["arrival"] == FIRST]
        if row["kind"] == "library" and cells:
            made.append((
                " × ".join(f"{one:,}" for one in row["shape"]), f"{row['alone_ns'] / 1e3:.1f}",
                *(f"{(cell['gemms_ns'][0] - row['alone_ns']) / 1e3:.1f}" for cell in cells),
            ))  # fmt: skip
    ctas = ("4", "16", "32")
    return Table(
        title="A GEMM after a collective of 150 us: us longer than alone",
        columns=(
            "tokens × out × in", ">alone, us", *(f">{count} CTAs" for count in ctas),
            *(f">{count}, with bytes" for count in ctas),
        ),
        rows=made,
    )  # fmt: skip
