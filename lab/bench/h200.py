"""Our H200's profile: its errors, and how it differs from the published H100."""

from __future__ import annotations

import random
import statistics
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from lab.bench.common import SOURCES, errors, read_measured
from lab.fits.contention import beside_cells
from lab.fits.gemm import layout_fit
from lab.fits.measured import GPU
from lab.verdict import Check, at_most, check_table, reported, table, verdict
from simulator.contention import compute_slowdown
from simulator.lookup.gemm import GemmRow
from simulator.profile import Profile

PUBLISHED: Final = "h100-dgx"
LAYOUTS: Final = ("forward", "dgrad", "wgrad")
GEMM_LIMIT: Final = 0.02
CONTENTION_LIMIT: Final = 0.03
FOLDS: Final = 5
A100_LAW: Final = (1.85, 1.108)
"""SMs that a CTA takes, and a factor on the time, as fitted on A100 (profiles/README.md)."""
FAMILIES: Final[list[dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)["families"]
NEAR: Final = 0.05


def h200() -> Iterator[Table]:
    """Yield errors of look-ups and of the contention law, and the published H100 beside it."""
    profile, checks = load_profile(GPU.name), []
    for layout in LAYOUTS:
        found = withheld_errors(profile, layout)
        what = f"GEMM {layout}, {len(found):,} rows, shapes withheld in {FOLDS} folds"
        checks.append(at_most(what, GEMM_LIMIT, statistics.fmean(found)))
        checks.append(reported("  median", f"{statistics.median(found):.2%}"))
    yield check_table("Look-ups from our own H200 rows (MAPE)", checks)
    yield _contention(profile)
    yield _same_shapes(profile.section("gemm").rows)
    yield _agreement([*profile.section("gemm").rows, *profile.section("attention").rows])


def withheld_errors(profile: Profile, layout: str) -> list[float]:
    """Return |looked up / measured − 1| of each row, without all rows of its shape."""
    section = profile.section("gemm")
    shapes = sorted({_shape(row) for row in section.rows if row.layout == layout})
    random.Random(0).shuffle(shapes)
    found: list[float] = []
    for fold in range(FOLDS):
        withheld = set(shapes[fold::FOLDS])
        known = tuple(row for row in section.rows if _shape(row) not in withheld)
        fits = (layout_fit(known, layout, GPU.machine.sm_count),)
        left = replace(profile, gemm=replace(section, rows=known, fits=fits)).gemm_table()
        found += errors(left, [row for row in section.rows if _shape(row) in withheld])
    return found


def _shape(row: GemmRow) -> tuple[int, int, int, str]:
    return row.m, row.n, row.k, row.layout


def _contention(profile: Profile) -> Table:
    """Return the errors of the laws of the profile, and of the one that was fitted on A100."""
    measured, checks = beside_cells(SOURCES.ours("contention")), list[Check]()
    for law in profile.section("contention").fit.compute:
        mine = [one for one in measured if one.family == law.family]
        what = f"{law.family}, {len(mine)} measurements, each op withheld"
        slower = (compute_slowdown(*A100_LAW, one.ctas, GPU.machine.sm_count) for one in mine)
        off = (abs(one.by(x) / one.slowdown - 1) for one, x in zip(mine, slower, strict=True))
        checks += [
            at_most(what, CONTENTION_LIMIT, law.error),
            reported("  SMs that a CTA takes, factor", f"{law.sms_per_cta:g}, {law.factor:g}"),
            reported("  error of the law fitted on A100", f"{statistics.fmean(off):.1%}"),
        ]
    return check_table("Contention beside an emulated collective of 1 to 32 CTAs", checks)


def _ventiles(ratios: Iterable[float], *shown: int) -> tuple[str, ...]:
    """Return the parts of ``ratios`` below these per cents, multiples of 5."""
    found = statistics.quantiles(ratios, n=20)
    return tuple(f"{found[percent // 5 - 1]:.2f}" for percent in shown)


def _same_shapes(gemms: Iterable[GemmRow]) -> Table:
    """Return our H200 times over published H100 times of forward GEMMs of the same shape."""
    rows = read_measured("h100_gemm_bf16.csv.gz", "gemm-csv").rows
    published = {row[:3]: row.median_us for row in rows}
    lines = []
    for layout in LAYOUTS:
        mine = (row for row in gemms if row.layout == layout and row[:3] in published)
        ratios = [row.median_us / published[row[:3]] for row in mine]
        lines.append((layout, len(ratios), *_ventiles(ratios, 5, 25, 50, 75, 95)))
    return table(
        "H200 measured / H100 published GEMM time of the same shape",
        "layout|>rows|>5 %|>25 %|>median|>75 %|>95 %", lines,
        "Both are bursts at boost clock; ours are of ops inside a model.",
    )  # fmt: skip


def _agreement(rows: Iterable[Any]) -> Table:
    """Return the published profile's times of compute-bound shapes over ours."""
    published, lines = load_profile(PUBLISHED), []
    tables = {"gemm": published.gemm_table(), "attention": published.attention_table()}
    by_way: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        way = row.layout if isinstance(row, GemmRow) else row.direction
        by_way.setdefault((row.signature.kind, way), []).append(row)
    for family in FAMILIES:
        (kind, way), (least, most), (low, high) = family["way"], family["size"], family["median"]
        mine = [row for row in by_way[kind, way] if least <= row.signature.flops / 1e12 < most]
        look_up = tables[kind].estimate  # type: ignore[attr-defined]
        ratios = [look_up(row.signature).duration_us / row.median_us for row in mine]
        median = statistics.quantiles(ratios, n=20)[9]
        lines.append((
            family["name"], len(ratios), *_ventiles(ratios, 5, 50, 95),
            "yes" if abs(median - 1) <= NEAR else "no", family["because"],
            f"{low:.2f}–{high:.2f}", verdict(low <= median <= high),
        ))  # fmt: skip
    return table(
        f"{PUBLISHED} looked up / {GPU.name} measured, compute-bound shapes",
        "shapes|>rows|>5 %|>median|>95 %|within 5 %|what differs|>median may be|verdict", lines,
    )  # fmt: skip
