"""Small cases and the report data made from them."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any, Final, cast

from domino_tune.report.data import ReportData, Sensitivity, ShownTimeline, SweepPlot
from domino_tune.results.layouts import LayoutResult, Layouts
from domino_tune.results.simulate import (
    BASELINE,
    CHOSEN,
    Contestant,
    SimulateResult,
    TakenMemory,
    UsableMemory,
    Verdict,
)
from domino_tune.results.tune import (
    ContentionPoint,
    ContentionSensitivity,
    GridCell,
    TrialResult,
    Tuned,
)
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import Chosen
from domino_tune.verbs.simulate import simulate_plan
from simulator.case import Case
from simulator.lookup import Provenance
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import simulate
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload

SLICED = SlicePlan(order="inter", wgrad="eager")
PARTS: Final = {one.name for one in fields(ReportData)}


@cache
def case(
    model: str = "gpt3-1.3b", layers: int = 6, tp: int = 4, dp: int = 1, micros: int = 1
) -> Case:
    """A few layers of ``model`` on the bundled H100 profile."""
    return Case(
        model=replace(MODELS[model], num_hidden_layers=layers),
        workload=Workload(seq_length=1024, micro_batch_size=4, grad_accumulation=micros),
        cluster=ClusterSpec(tp=tp, dp=dp),
        profile=load_profile("h100-dgx"),
    )


def shown(on: Case, plan: SlicePlan) -> ShownTimeline:
    """The simulated plan, with each op's time alone."""
    timeline = simulate(on, plan)
    alone = tuple(on.cost.duration_ns(op.signature) for op in timeline.ops)
    return ShownTimeline(plan=plan, timeline=timeline, alone_ns=alone)


def result_of(on: Case, plan: SlicePlan = SLICED) -> SimulateResult:
    """The plan's simulation, without a verdict."""
    return simulate_plan(on, Chosen.of(on, plan))


def report_data(on: Case, plan: SlicePlan = SLICED, **changes: Any) -> ReportData:
    """A page without its optional parts; ``changes`` are fields of it, or of its result."""
    baseline, chosen, bound = (shown(on, item) for item in (MEGATRON, plan, NO_COMM))
    of_page = {name: changes.pop(name) for name in [*changes] if name in PARTS}
    data = ReportData(
        title="a model on a machine",
        workload=(("Model", on.model.name),),
        baseline=baseline,
        chosen=chosen,
        bound=bound,
        result=replace(result_of(on, plan), **changes),
    )
    return replace(data, **of_page)


def tuned(
    grid: tuple[GridCell, ...] = (),
    trials: tuple[TrialResult, ...] = (),
    crossovers: tuple[ContentionPoint, ...] = (),
    said: str = "exhaustive",
) -> Tuned:
    """A search that found these."""
    contention = ContentionSensitivity(
        points=crossovers, crossovers=crossovers, changes_above=None, changes_below=None
    )
    return Tuned(
        best=cast("SimulateResult", None), search=said, seed=0, target=None,
        optimality="best_found", space_size=9, evaluations=3, pruned=0, infeasible={said: 2},
        trials=trials, grid=grid, contention=contention, seconds=0.1,
    )  # fmt: skip


def trial(iteration_ms: float, plan: SlicePlan = SLICED) -> TrialResult:
    """A plan that was tried."""
    return TrialResult(
        plan=plan, micro_batch_size=4, iteration_ms=iteration_ms, peak_memory_gib=1.0,
        fits_chance=1.0,
    )  # fmt: skip


def cell(rows: int, columns: int, ms: float | None, plan: SlicePlan | None = None) -> GridCell:
    """A cell of the map of cuts; without a time it does not fit."""
    reason = "" if ms else "out of memory"
    return GridCell(row_slices=rows, col_slices=columns, iteration_ms=ms, plan=plan, reason=reason)


def crossover(factor: float, winner: SlicePlan, winner_ms: float = 1.0) -> ContentionPoint:
    """From that contention on this plan wins."""
    return ContentionPoint(
        factor=factor, chosen_ms=1.0, winner=winner, winner_ms=winner_ms, baseline_ms=1.0
    )


def layout(rate: float, plan: SlicePlan = SLICED, **changes: object) -> LayoutResult:
    """A layout that trains ``rate`` tokens a second a GPU; ``changes`` are fields of it."""
    made = LayoutResult(
        tp=4, pp=2, vpp=1, cp=1, dp=2, ep=1, etp=0, pp_layers=(), micro_batch_size=1,
        grad_accumulation=8,
        recompute="none", recompute_layers=0, plan=plan, iteration_ms=1e6 / rate,
        tokens_per_second_per_gpu=rate, mfu=0.5, peak_memory_gib=60.0, fits_chance=0.97,
        cost=None, domino_gain=1.02, domino_gain_here=1.05,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def layouts(*ranked: LayoutResult, rival: LayoutResult | None = None) -> Layouts:
    """The best layouts of 16 GPUs, which are all on the frontier, too; without a simulation."""
    return Layouts(
        best=cast("SimulateResult", None), gpus=16, global_batch_size=64, layouts=ranked,
        best_without_domino=rival, frontier=ranked, optimality="proven", candidates=9, plans=90,
        evaluations=5, infeasible={}, seconds=1.0,
    )  # fmt: skip


def verdict(baseline: float, domino: float, *, fits: tuple[bool, bool] = (True, True)) -> Verdict:
    """What is said where Megatron and Domino are the fastest with these chances."""
    chances = (
        ("megatron", "Megatron", MEGATRON, 1.0, baseline),
        ("domino", "Domino", SLICED, 1.15, domino),
    )
    return Verdict(
        text="The words of the verdict.",
        contestants=tuple(
            Contestant(
                strategy=strategy, name=name, plan=plan, iteration_ms=100.0 / speedup,
                speedup=speedup, low=0.95 * speedup, high=1.05 * speedup, chance=chance,
                fits=fit, fits_chance=float(fit), runs_in="Megatron-LM",
            )
            for (strategy, name, plan, speedup, chance), fit in zip(chances, fits, strict=True)
        ),
        draws=2000, seed=0, unsure={"gemm_forward": 0.02},
    )  # fmt: skip


def usable(usable_gib: float, reserved_gib: float = 23.9) -> UsableMemory:
    """So much of a GPU, after its context."""
    return UsableMemory(
        gpu_gib=usable_gib + 0.5, source="reported: by a driver",
        taken=(TakenMemory(what="CUDA context", gib=0.5, source="assumed: half a GiB"),),
        usable_gib=usable_gib, recommended_gib=0.875 * usable_gib, reserved_gib=reserved_gib,
        reserved_source="measured: 4 jobs",
    )  # fmt: skip


def full_data(on: Case, said: str = "words") -> ReportData:
    """A page with every part; ``said`` stands wherever text of the user's can stand."""
    result = result_of(on)
    memory = {
        BASELINE: replace(result.variants[BASELINE], memory_gib={said: 1.5, "logits": 0.0}),
        CHOSEN: replace(result.variants[CHOSEN], memory_gib={said: 1.25, "logits": 0.25}),
    }
    return report_data(
        on,
        title=said,
        profile=replace(result.profile, name=said),
        workload=((said, said),),
        warnings=(said,),
        variants={**result.variants, **memory},
        usable_memory=usable(76.0),
        fits_chance=0.97,
        layouts=layouts(layout(1000.0), layout(900.0, MEGATRON, domino_gain_here=1.0)),
        search=tuned(
            grid=(cell(1, 1, 30.0), cell(2, 1, 20.0), replace(cell(2, 2, None), reason=said)),
            trials=(trial(20.0),),
            crossovers=(crossover(0.0, SLICED, 19.0), crossover(1.7, MEGATRON, 31.0)),
            said=said,
        ),
        heat_note=said,
        sensitivity=(Sensitivity(key=said, low=said, high=said, low_ms=18.0, high_ms=25.0),),
        sweeps=(SweepPlot(x_label=said, xs=(said, "2"), series={said: (1.0, 2.0)}),),
        sources={said: Provenance(kind="measured", source=said, error=0.1, note=said)},
        commands=((said, said),),
    )  # fmt: skip
