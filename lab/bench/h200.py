"""The H200 profile that the project measured: its errors, and the plans it leads to."""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.requests import TuneRequest
from domino_tune.results import TuneResult
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.tune import tune
from lab.bench.facts import REPOSITORY, read_measured
from lab.fits.common import records
from lab.fits.contention import Beside, beside_cells, fit_beside
from lab.fits.gemm import layout_fit
from lab.fits.measured import GPU
from lab.verdict import Check, SkippedError, at_most, check_table, reported
from simulator.contention import compute_slowdown
from simulator.errors import InfeasiblePlanError
from simulator.lookup.gemm import GemmRow
from simulator.ops import Gemm
from simulator.profile import Profile

NAME: Final = "h200-sxm"
PUBLISHED: Final = "h100-dgx"
GEMM_LIMIT: Final = 0.02
CONTENTION_LIMIT: Final = 0.03
FOLDS: Final = 5
A100_LAW: Final = (1.85, 1.108)
"""SMs that a CTA takes, and a factor on the time, as fitted on A100 (profiles/README.md)."""
TUNED: Final = (
    ("gpt3-1.3b", 2048, 16), ("gpt3-2.7b", 2048, 16), ("gpt3-6.7b", 2048, 8),
    ("gpt3-13b", 2048, 8), ("gpt3-30b", 2048, 8), ("llama2-7b", 4096, 4),
    ("llama2-13b", 4096, 4), ("llama2-70b", 4096, 1), ("llama3-8b", 8192, 2),
    ("llama3-70b", 8192, 1),
)  # fmt: skip
"""Preset, sequence length and micro-batch size that fit 80 GB at TP 8."""
MIN_RATIOS: Final = 8


def h200() -> list[Table]:
    """Return errors of look-ups and of the contention law, and the tuned plans."""
    profile = load_profile(NAME)
    tables = [_look_ups(profile), _contention()]
    with contextlib.suppress(SkippedError):
        tables.append(_beside_published(profile))
    return [*tables, _plans()]


# Look-ups -------------------------------------------------------------------------------------


def _look_ups(profile: Profile) -> Table:
    checks = []
    for layout in ("forward", "dgrad", "wgrad"):
        errors = withheld_errors(profile, layout)
        checks += [
            at_most(
                f"GEMM {layout}, {len(errors):,} rows, shapes withheld in {FOLDS} folds",
                GEMM_LIMIT, statistics.fmean(errors),
            ),
            reported("  median", f"{statistics.median(errors):.2%}"),
        ]  # fmt: skip
    return check_table("Look-ups from our own H200 rows (MAPE)", checks)


def withheld_errors(profile: Profile, layout: str) -> list[float]:
    """Return |looked up / measured − 1| of each row, without all rows of its shape."""
    section = profile.section("gemm")
    shapes = sorted({_shape(row) for row in section.rows if row.layout == layout})
    random.Random(0).shuffle(shapes)
    errors = []
    for fold in range(FOLDS):
        withheld = set(shapes[fold::FOLDS])
        known = [row for row in section.rows if _shape(row) not in withheld]
        left = replace(
            section, rows=tuple(known), fits=(layout_fit(known, layout, GPU.machine.sm_count),)
        )
        table = replace(profile, gemm=left).gemm_table()
        errors += [
            abs(table.estimate(row.signature).duration_us / row.median_us - 1)
            for row in section.rows
            if _shape(row) in withheld
        ]
    return errors


def _shape(row: GemmRow) -> tuple[int, int, int, str]:
    return row.m, row.n, row.k, row.layout


# Beside the published table --------------------------------------------------------------------


def _beside_published(profile: Profile) -> Table:
    """Return our H200 times over published H100 times: rows of the same shape, and the law."""
    published: dict[tuple[int, int, int], float] = {
        (row.m, row.n, row.k): row.median_us
        for row in read_measured("h100_gemm_bf16.csv.gz", "gemm-csv").rows
    }
    rows: Sequence[GemmRow] = profile.section("gemm").rows
    law = load_profile(PUBLISHED).gemm_table()
    lines = []
    for layout in ("forward", "dgrad", "wgrad"):
        mine = [row for row in rows if row.layout == layout]
        for what, ratios in (
            (
                "same shape",
                [r.median_us / published[_mnk(r)] for r in mine if _mnk(r) in published],
            ),
            ("law", [r.median_us / law.estimate(Gemm(*_mnk(r))).duration_us for r in mine]),
        ):
            if len(ratios) >= MIN_RATIOS:
                ventiles = statistics.quantiles(ratios, n=20)
                lines.append(
                    (layout, what, str(len(ratios)),
                     *(f"{ventiles[i]:.2f}" for i in (0, 4, 9, 14, 18)))
                )  # fmt: skip
    return Table(
        title="H200 measured / H100 published GEMM time",
        columns=("layout", "beside", ">rows", ">5 %", ">25 %", ">median", ">75 %", ">95 %"),
        rows=lines,
        notes=("Both are bursts at boost clock; ours are of ops inside a model.",),
    )


def _mnk(row: GemmRow) -> tuple[int, int, int]:
    return row.m, row.n, row.k


# Contention ------------------------------------------------------------------------------------


def _contention() -> Table:
    folder = REPOSITORY / "measurements" / NAME
    measurements = beside_cells(records(folder / "contention.jsonl.gz"))
    checks: list[Check] = []
    for family in ("gemm", "attention", "pointwise"):
        mine = [one for one in measurements if one.family == family]
        fit = fit_beside(mine, sm_count=GPU.machine.sm_count)
        checks += [
            at_most(f"{family}, {len(mine)} measurements, each op withheld", CONTENTION_LIMIT,
                    fit.error),
            reported(
                "  SMs that a CTA takes, factor, µs an op loses by a CTA",
                f"{fit.sms_per_cta:g}, {fit.factor:g}, {fit.us_per_cta:g}",
            ),
            reported("  error of the law fitted on A100", f"{_a100_error(mine):.1%}"),
        ]  # fmt: skip
    return check_table("Contention beside an emulated collective of 1 to 32 CTAs", checks)


def _a100_error(measurements: Sequence[Beside]) -> float:
    per_cta, factor = A100_LAW
    return statistics.fmean(
        abs(compute_slowdown(per_cta, factor, one.ctas, GPU.machine.sm_count) / one.slowdown - 1)
        for one in measurements
    )


# Plans ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One workload tuned on both profiles. ``loss``: how much slower, on our profile, the plan
    tuned on the published profile is than ours."""

    name: str
    ours: TuneResult
    published: TuneResult
    loss: float


def _plans() -> Table:
    rows = []
    for pair in _pairs():
        ours, theirs = pair.ours.best, pair.published.best
        rows.append(
            (
                pair.name, ours.plan.label, f"{ours.speedup:.3f}x", f"{ours.confidence}",
                theirs.plan.label, f"{theirs.speedup:.3f}x", f"{pair.loss:+.1%}",
            )
        )  # fmt: skip
    return Table(
        title="Plans at TP 8: tuned on h200-sxm and on h100-dgx",
        columns=(
            "model, sequence × batch", "on h200-sxm", ">speedup", "confidence", "on h100-dgx",
            ">speedup", ">its plan on h200",
        ),
        rows=rows,
        notes=("Last column: how much slower the h100-dgx plan is, simulated on h200-sxm.",),
    )  # fmt: skip


def _pairs() -> Iterator[Pair]:
    from domino_tune.verbs.resolve import Chosen
    from simulator.predict import predict

    for model, seq, batch in TUNED:
        request = {
            name: TuneRequest(
                model=model, profile=name, tp=8, seq_length=seq, micro_batch_size=batch
            )
            for name in (NAME, PUBLISHED)
        }
        try:
            ours, theirs = tune(request[NAME]), tune(request[PUBLISHED])
        except InfeasiblePlanError:
            continue
        case = ours.best.case
        other = Chosen.of(case, theirs.best.plan)
        here_ms = predict(case, other.plan, other.order).makespan_ns * 1e-6
        yield Pair(
            name=f"{model}, {seq:,} × {batch}", ours=ours, published=theirs,
            loss=here_ms / ours.best.iteration_ms - 1,
        )  # fmt: skip
