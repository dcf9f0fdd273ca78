"""The H200 profile that the project measured: its errors, and how it differs from the published
H100."""

from __future__ import annotations

import random
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from lab.bench.facts import REPOSITORY, errors, read_measured
from lab.fits.common import records
from lab.fits.contention import Beside, beside_cells
from lab.fits.gemm import layout_fit
from lab.fits.measured import GPU
from lab.verdict import Check, at_most, check_table, reported, verdict
from simulator.contention import compute_slowdown
from simulator.lookup.attention import AttentionRow
from simulator.lookup.gemm import GemmRow
from simulator.profile import Profile

NAME: Final = "h200-sxm"
PUBLISHED: Final = "h100-dgx"
LAYOUTS: Final = ("forward", "dgrad", "wgrad")
GEMM_LIMIT: Final = 0.02
CONTENTION_LIMIT: Final = 0.03
FOLDS: Final = 5
A100_LAW: Final = (1.85, 1.108)
"""SMs that a CTA takes, and a factor on the time, as fitted on A100 (profiles/README.md)."""
TOLD: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
NEAR: Final = 0.05
Row = GemmRow | AttentionRow


def h200() -> Iterator[Table]:
    """Yield errors of look-ups and of the contention law, and the published H100 beside it."""
    profile = load_profile(NAME)
    gemms: Sequence[GemmRow] = profile.section("gemm").rows
    yield _look_ups(profile)
    yield _contention(profile)
    yield _same_shapes(gemms)
    yield _agreement([*gemms, *profile.section("attention").rows])


def _way(row: Row) -> str:
    return row.layout if isinstance(row, GemmRow) else row.direction


def _tflop(row: Row) -> float:
    return row.signature.flops * 1e-12


def _ventiles(ratios: Iterable[float], *shown: int) -> tuple[str, ...]:
    """Return the parts of ``ratios`` below these per cents, multiples of 5."""
    found = statistics.quantiles(ratios, n=20)
    return tuple(f"{found[percent // 5 - 1]:.2f}" for percent in shown)


def _look_ups(profile: Profile) -> Table:
    checks = []
    for layout in LAYOUTS:
        found = withheld_errors(profile, layout)
        checks += [
            at_most(
                f"GEMM {layout}, {len(found):,} rows, shapes withheld in {FOLDS} folds",
                GEMM_LIMIT, statistics.fmean(found),
            ),
            reported("  median", f"{statistics.median(found):.2%}"),
        ]  # fmt: skip
    return check_table("Look-ups from our own H200 rows (MAPE)", checks)


def withheld_errors(profile: Profile, layout: str) -> list[float]:
    """Return |looked up / measured − 1| of each row, without all rows of its shape."""
    section = profile.section("gemm")
    shapes = sorted({_shape(row) for row in section.rows if row.layout == layout})
    random.Random(0).shuffle(shapes)
    found: list[float] = []
    for fold in range(FOLDS):
        withheld = set(shapes[fold::FOLDS])
        known = [row for row in section.rows if _shape(row) not in withheld]
        left = replace(
            section, rows=tuple(known), fits=(layout_fit(known, layout, GPU.machine.sm_count),)
        )
        table = replace(profile, gemm=left).gemm_table()
        found += errors(table, [row for row in section.rows if _shape(row) in withheld])
    return found


def _shape(row: GemmRow) -> tuple[int, int, int, str]:
    return row.m, row.n, row.k, row.layout


def _contention(profile: Profile) -> Table:
    """Return the errors of the laws of the profile, and of the one that was fitted on A100."""
    measured = beside_cells(records(REPOSITORY / f"measurements/{NAME}/contention.jsonl.gz"))
    checks: list[Check] = []
    for law in profile.section("contention").fit.compute:
        mine = [one for one in measured if one.family == law.family]
        checks += [
            at_most(f"{law.family}, {len(mine)} measurements, each op withheld", CONTENTION_LIMIT,
                    law.error),
            reported(
                "  SMs that a CTA takes, factor", f"{law.sms_per_cta:g}, {law.factor:g}",
            ),
            reported("  error of the law fitted on A100", f"{_a100_error(mine):.1%}"),
        ]  # fmt: skip
    return check_table("Contention beside an emulated collective of 1 to 32 CTAs", checks)


def _a100_error(measurements: Sequence[Beside]) -> float:
    return statistics.fmean(
        abs(one.by(compute_slowdown(*A100_LAW, one.ctas, GPU.machine.sm_count)) / one.slowdown - 1)
        for one in measurements
    )


def _same_shapes(gemms: Sequence[GemmRow]) -> Table:
    """Return our H200 times over published H100 times of forward GEMMs of the same shape."""
    published: Mapping[tuple[int, ...], float] = {
        row[:3]: row.median_us for row in read_measured("h100_gemm_bf16.csv.gz", "gemm-csv").rows
    }
    lines = []
    for layout in LAYOUTS:
        mine = [row for row in gemms if row.layout == layout and row[:3] in published]
        ratios = [row.median_us / published[row[:3]] for row in mine]
        lines.append((layout, str(len(ratios)), *_ventiles(ratios, 5, 25, 50, 75, 95)))
    return Table(
        title="H200 measured / H100 published GEMM time of the same shape",
        columns=("layout", ">rows", ">5 %", ">25 %", ">median", ">75 %", ">95 %"),
        rows=lines,
        notes=("Both are bursts at boost clock; ours are of ops inside a model.",),
    )


def _agreement(rows: Sequence[Row]) -> Table:
    """Return the published profile's times of compute-bound shapes over ours."""
    published, lines = load_profile(PUBLISHED), []
    tables = {"gemm": published.gemm_table(), "attention": published.attention_table()}
    for family in TOLD["families"]:
        (kind, way), (least, most), (low, high) = family["way"], family["size"], family["median"]
        mine = [
            row
            for row in rows
            if (row.signature.kind, _way(row)) == (kind, way) and least <= _tflop(row) < most
        ]
        look_up = tables[kind].estimate  # type: ignore[attr-defined]
        ratios = [look_up(row.signature).duration_us / row.median_us for row in mine]
        median = statistics.quantiles(ratios, n=20)[9]
        lines.append((
            family["name"], str(len(ratios)), *_ventiles(ratios, 5, 50, 95),
            "yes" if abs(median - 1) <= NEAR else "no", family["because"],
            f"{low:.2f}–{high:.2f}", verdict(low <= median <= high),
        ))  # fmt: skip
    return Table(
        title=f"{PUBLISHED} looked up / {NAME} measured, compute-bound shapes",
        columns=(
            "shapes", ">rows", ">5 %", ">median", ">95 %", "within 5 %", "what differs",
            ">median may be", "verdict",
        ),
        rows=lines,
    )  # fmt: skip
