"""Small cases and the report data made from them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import cast

from domino_tune.report.data import (
    Crossover,
    HeatCell,
    Held,
    Numbers,
    PlanRow,
    ReportData,
    Search,
    Sensitivity,
    Shown,
    Source,
    Sweep,
)
from domino_tune.results.layouts import LayoutResult, Layouts
from domino_tune.results.simulate import (
    Contestant,
    SimulateResult,
    TakenMemory,
    UsableMemory,
    Verdict,
)
from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.confidence import confidence_of
from simulator.dtypes import MS_PER_NS
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import simulate
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload

SLICED = SlicePlan(order="inter", wgrad="eager")


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


def shown(on: Case, plan: SlicePlan) -> Shown:
    """The simulated plan, with each op's time alone."""
    timeline = simulate(on, plan)
    alone = tuple(on.cost.duration_ns(op.signature) for op in timeline.ops)
    return Shown(plan=plan, timeline=timeline, alone_ns=alone)


def report_data(on: Case, plan: SlicePlan = SLICED, **changes: object) -> ReportData:
    """A page without its optional parts; ``changes`` are fields of ReportData."""
    baseline, chosen, bound = (shown(on, item) for item in (MEGATRON, plan, NO_COMM))
    confidence = confidence_of(chosen.timeline, on.cost)
    data = ReportData(
        title="a model on a machine",
        workload=(("Model", on.model.name),),
        profile="h100-dgx",
        baseline=baseline,
        chosen=chosen,
        bound=bound,
        numbers=Numbers(
            iteration_ms=chosen.timeline.makespan_ns * MS_PER_NS,
            baseline_ms=baseline.timeline.makespan_ns * MS_PER_NS,
            no_comm_ms=bound.timeline.makespan_ns * MS_PER_NS,
            comm_ms=chosen.timeline.breakdown.comm_ns * MS_PER_NS,
            exposed_ms=chosen.timeline.breakdown.exposed_comm_ns * MS_PER_NS,
            baseline_exposed_ms=baseline.timeline.breakdown.exposed_comm_ns * MS_PER_NS,
            peak_memory_gib=12.5,
            tokens_per_second_per_gpu=6543.0,
            tflops_per_gpu=321.0,
            mfu=0.324,
            low_ms=confidence.low_ns * MS_PER_NS,
            high_ms=confidence.high_ns * MS_PER_NS,
            confidence=confidence.level,
            shares=confidence.shares,
        ),
    )
    return replace(data, **changes)  # type: ignore[arg-type]


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
    data = report_data(on)
    return replace(
        data,
        title=said,
        profile=said,
        workload=((said, said),),
        numbers=replace(data.numbers, warnings=(said,)),
        held=(
            Held(name="Megatron-LM", gib={said: 1.5, "logits": 0.0}),
            Held(name=said, gib={said: 1.25, "logits": 0.25}, chosen=True),
        ),
        usable=usable(76.0),
        fits_chance=0.97,
        layouts=layouts(layout(1000.0), layout(900.0, MEGATRON, domino_gain_here=1.0)),
        heat=(
            HeatCell(row_slices=1, col_slices=1, iteration_ms=30.0, note=said),
            HeatCell(row_slices=2, col_slices=1, iteration_ms=20.0, note=said),
            HeatCell(row_slices=2, col_slices=2, iteration_ms=None, note=said),
        ),
        heat_note=said,
        plans=(PlanRow(plan=SLICED, note=said, iteration_ms=20.0, peak_memory_gib=1.0),),
        crossovers=(
            Crossover(factor=0.0, winner=SLICED, iteration_ms=19.0, baseline_ms=30.0),
            Crossover(factor=1.7, winner=MEGATRON, iteration_ms=31.0, baseline_ms=31.0),
        ),
        sensitivity=(Sensitivity(key=said, low=said, high=said, low_ms=18.0, high_ms=25.0),),
        sweeps=(Sweep(x_label=said, xs=(said, "2"), series={said: (1.0, 2.0)}),),
        search=Search(
            method=said, found=said, space_size=9, evaluations=3, seconds=0.1,
            infeasible={said: 2},
        ),
        sources=(Source(section=said, kind=said, source=said, error=0.1, note=said),),
        commands=((said, said),),
    )  # fmt: skip
