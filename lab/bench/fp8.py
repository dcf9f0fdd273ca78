"""FP8: published steps of the same dense jobs in BF16 and in FP8, compared with predictions.

Nothing is fitted to them. NVIDIA's tables name the recipe of one release (delayed scaling); they do
not say whether parameters were gathered in FP8, which is taken as off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import mean
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.measure.importers.tables import Line
from domino_tune.search.rivals import rival_plans
from domino_tune.verbs.resolve import baseline_plan, unsliced
from lab.bench.baselines import JOBS, case_of, gain_of
from lab.bench.cases import half_width
from lab.bench.coverage import held
from lab.bench.runs import Run, dgxc_runs
from lab.verdict import Check, at_most, check_table
from simulator.predict import predict
from simulator.specs import Fp8Recipe

MEAN_ERROR: Final = 0.08
RATIO: Final = 0.10
HALF_WIDTH: Final = 0.25


class Pair(NamedTuple):
    """A job's step in BF16 and in FP8: a name that both have, and the ratio of their times."""

    name: str
    measured: float
    predicted: float


def fp8() -> list[Table]:
    """Return each run with its interval, the ratio of BF16's time over FP8's, and the checks."""
    found = [(row, held(_with_userbuffers(run))) for row, run in dgxc_runs()]
    lines, inside, widths = [], 0, []
    for row, one in found:
        low, high = one.ms * one.low, one.ms * one.high
        inside += low <= one.run.measured_ms <= high
        widths.append((high - low) / 2 / one.ms)
        lines.append(
            (
                row["precision"], one.run.label, f"{one.run.measured_ms:,.0f}", f"{one.ms:,.0f}",
                f"{one.run.error(one.ms):+.1%}", f"{low:,.0f}–{high:,.0f}",
            )
        )  # fmt: skip
    errors = [abs(one.run.error(one.ms)) for row, one in found if row["precision"] == "fp8"]
    pairs = list(_pairs([(row, one.run.measured_ms, one.ms) for row, one in found]))
    off = max(abs(one.predicted - one.measured) for one in pairs)
    return [
        Table(
            title="NVIDIA's dense jobs on H100s in BF16 and in FP8 (delayed scaling), userbuffers",
            columns=("precision", "job", ">measured ms", ">predicted ms", ">error", ">interval"),
            rows=lines,
        ),
        Table(
            title="The same job's time in BF16 over that in FP8",
            columns=("job", ">measured", ">predicted"),
            rows=[(one.name, f"{one.measured:.2f}", f"{one.predicted:.2f}") for one in pairs],
        ),
        check_table(
            "FP8: checks",
            [
                at_most("mean error of FP8 steps on Hopper", MEAN_ERROR, mean(errors)),
                at_most("largest difference of a ratio", RATIO, off, unit="", digits=3),
                Check(
                    what="steps inside their interval", target=f"all {len(found)}",
                    measured=str(inside), ok=inside == len(found),
                ),
                at_most("largest half-width of an interval", HALF_WIDTH, max(widths)),
            ],
        ),
    ]  # fmt: skip


def _with_userbuffers(run: Run) -> Run:
    """Return the run with TransformerEngine's usual methods of userbuffers, as its launcher has
    them."""
    return run._replace(plan=unsliced("userbuffers", (), True))


def _pairs(found: list[tuple[Line, float, float]]) -> Iterator[Pair]:
    """Yield the jobs that have both precisions, on as many GPUs."""
    halves = {
        (row["model"], row["gpus"]): (measured, ms)
        for row, measured, ms in found
        if row["precision"] == "bf16"
    }
    for row, measured, ms in found:
        beside = halves.get((row["model"], row["gpus"]))
        if row["precision"] == "fp8" and beside:
            name = f"{row['model']}, {row['num_layers']} layers, {row['gpus']} GPUs"
            yield Pair(name, beside[0] / measured, beside[1] / ms)


class Gains(NamedTuple):
    """Speed-ups over Megatron-LM with sequence parallelism: Domino's with the half-width of its
    time's interval, and the best rival's with its name."""

    domino: float
    half_width: float
    rival: float
    name: str


def gains() -> list[Table]:
    """Return what Domino and the best rival gain for eight models, in BF16 and in FP8."""
    rows = []
    for model, tp in product(JOBS, (4, 8)):
        halves, eights = (_gains(model, tp, one) for one in ("none", "tensorwise"))
        cells = [
            (f"{one.domino:.2f} ±{one.half_width:.0%}", f"{one.rival:.2f} {one.name}")
            for one in (halves, eights)
        ]
        rows.append((model, str(tp), *cells[0], *cells[1]))
    return [
        Table(
            title="Speed-up over Megatron-LM with sequence parallelism on h100-dgx",
            columns=("model", ">tp", ">Domino, BF16", ">best rival", ">Domino, FP8", ">best rival"),
            rows=rows,
            notes=["16,384 tokens a micro-batch; FP8: one scale a tensor (tensorwise). ±: half of "
                   "the interval of the iteration."],
        )
    ]  # fmt: skip


def _gains(model: str, tp: int, recipe: Fp8Recipe) -> Gains:
    plain = case_of("h100-dgx", model, tp)
    case = replace(plain, workload=replace(plain.workload, fp8_recipe=recipe))
    found, base = gain_of(case), predict(case, baseline_plan(case)).makespan_ns
    rivals = {
        name: base / predict(case, plan).makespan_ns for name, plan in rival_plans(case).items()
    }
    best = max(rivals, key=rivals.__getitem__)
    return Gains(found.gain, half_width(found.known), rivals[best], best)
