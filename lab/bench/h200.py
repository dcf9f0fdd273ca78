"""The H200 profile that the project measured: its errors, the plans it leads to, how it differs
from the published H100, and at what clock its rows were taken."""

from __future__ import annotations

import random
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from domino_tune.base.tables import Table
from domino_tune.requests import TuneRequest
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import Chosen
from domino_tune.verbs.tune import tune
from lab.bench.facts import REPOSITORY, errors, read_measured
from lab.fits.common import records
from lab.fits.contention import Beside, beside_cells
from lab.fits.gemm import layout_fit
from lab.fits.measured import GPU
from lab.verdict import Check, at_most, check_table, reported, verdict
from simulator.contention import compute_slowdown
from simulator.errors import InfeasiblePlanError
from simulator.lookup.attention import AttentionRow
from simulator.lookup.gemm import GemmRow
from simulator.predict import predict
from simulator.profile import Profile
from simulator.units import MS_PER_NS

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
FLOPS_PER_CLOCK: Final = 4096
"""Dense bf16 FLOPs of an SM in a clock: 989.4 TFLOP/s of 132 SMs at 1,830 MHz (NVIDIA's paper)."""
LASTING: Final = (666.0, 1470.0)
"""TFLOP/s and MHz of a large GEMM after a long run (measurements/h200-sxm/launch.jsonl.gz)."""
HEAVY_TFLOP: Final = 0.3
Row = GemmRow | AttentionRow


def h200() -> Iterator[Table]:
    """Yield errors of look-ups and of the contention law, the published H100 beside it, the clocks
    that rates imply, and the tuned plans."""
    profile = load_profile(NAME)
    gemms: Sequence[GemmRow] = profile.section("gemm").rows
    yield _look_ups(profile)
    yield _contention(profile)
    yield _same_shapes(gemms)
    yield _agreement([*gemms, *profile.section("attention").rows])
    yield _clocks(gemms, profile.machine.sm_count * FLOPS_PER_CLOCK * 1e-6)
    yield _plans()


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
                "  SMs that a CTA takes, factor, µs an op loses by a CTA",
                f"{law.sms_per_cta:g}, {law.factor:g}, {law.us_per_cta:g}",
            ),
            reported("  error of the law fitted on A100", f"{_a100_error(mine):.1%}"),
        ]  # fmt: skip
    return check_table("Contention beside an emulated collective of 1 to 32 CTAs", checks)


def _a100_error(measurements: Sequence[Beside]) -> float:
    return statistics.fmean(
        abs(compute_slowdown(*A100_LAW, one.ctas, GPU.machine.sm_count) / one.slowdown - 1)
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


def _clocks(gemms: Sequence[GemmRow], per_mhz: float) -> Table:
    """Return at what clock rows were taken; a clock of 1 MHz gives ``per_mhz`` TFLOP/s."""
    lines, (lasting, mhz) = [], LASTING
    for layout in LAYOUTS:
        for name, heavy in ((f"above {HEAVY_TFLOP} TFLOP", True), ("below", False)):
            rates = [
                1e6 * _tflop(row) / row.median_us
                for row in gemms
                if row.layout == layout and (_tflop(row) > HEAVY_TFLOP) == heavy
            ]
            above = sum(rate > lasting for rate in rates) / len(rates)
            lines.append((
                f"{layout}, {name}", str(len(rates)), f"{statistics.median(rates):.0f}",
                f"{max(rates):.0f}", f"{max(rates) / per_mhz:,.0f}", f"{above:.0%}",
            ))  # fmt: skip
    return Table(
        title=f"At what clock the GEMM rows of {NAME} were taken: boost, as rates tell",
        columns=(
            "rows", ">rows", ">TFLOP/s, median", ">most", ">MHz of the most, at least",
            f">faster than {lasting:g} TFLOP/s",
        ),
        rows=lines,
        notes=[
            f"A large GEMM reached {lasting:g} TFLOP/s at {mhz:,.0f} MHz after a long run, 790 in "
            f"the 20 ms after rest; {lasting:g} × 1,980 / {mhz:,.0f} is 897. The clock of a row "
            f"was not recorded. At least: rate / (132 SMs × {FLOPS_PER_CLOCK:,} FLOPs a clock).",
        ],
    )  # fmt: skip


def _plans() -> Table:
    rows = []
    for model, seq, batch in TOLD["tuned"]:
        requests = [
            TuneRequest(model=model, profile=name, tp=8, seq_length=seq, micro_batch_size=batch)
            for name in (NAME, PUBLISHED)
        ]
        try:
            ours, theirs = (tune(request).best for request in requests)
        except InfeasiblePlanError:
            continue
        other = Chosen.of(ours.case, theirs.plan)
        here_ms = predict(ours.case, other.plan, other.order).makespan_ns * MS_PER_NS
        rows.append((
            f"{model}, {seq:,} × {batch}", ours.plan.label, f"{ours.speedup:.3f}x",
            f"{ours.confidence}", theirs.plan.label, f"{theirs.speedup:.3f}x",
            f"{here_ms / ours.iteration_ms - 1:+.1%}",
        ))  # fmt: skip
    return Table(
        title=f"Plans at TP 8: tuned on {NAME} and on {PUBLISHED}",
        columns=(
            "model, sequence × batch", f"on {NAME}", ">speedup", "confidence", f"on {PUBLISHED}",
            ">speedup", ">its plan on h200",
        ),
        rows=rows,
        notes=("Last column: how much slower the h100-dgx plan is, simulated on h200-sxm.",),
    )  # fmt: skip
