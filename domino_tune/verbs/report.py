"""From results to the report page: compute everything that it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from domino_tune import requests
from domino_tune.report import STRATEGY_NAMES
from domino_tune.report.data import (
    Pass,
    PipelinePicture,
    ReportData,
    Sensitivity,
    ShownTimeline,
    SweepPlot,
)
from domino_tune.report.page import report_html, scale_html
from domino_tune.requests.command_line import command_line, simulate_request
from domino_tune.requests.outputs import PlanOutputs, ScaleOutputs, SearchOutputs
from domino_tune.results.layouts import LayoutsResult, ScaleResult
from domino_tune.results.shown import workload_line
from domino_tune.results.simulate import BASELINE, BOUND, CHOSEN, SimulateResult
from domino_tune.results.tune import TuneResult
from domino_tune.results.whatif import WhatIfResult
from domino_tune.search.problem import piece_count
from domino_tune.verbs.landscape import NOTE
from domino_tune.verbs.scale import requests_of
from domino_tune.verbs.whatif import changed
from simulator.dtypes import MS_PER_NS
from simulator.errors import DominoTuneError
from simulator.lookup import Provenance
from simulator.predict import played_pipeline, predict
from simulator.profile import SECTIONS, Profile
from simulator.specs import ClusterSpec

NUDGES: Final = (
    ("link_bandwidth", "0.5x", "2x"),
    ("link_latency", "0.5x", "2x"),
    ("gpu_flops", "0.5x", "2x"),
    ("memory_bandwidth", "0.5x", "2x"),
    ("contention", "off", "2x"),
)


def simulation_page(request: requests.SimulateRequest, result: SimulateResult) -> str:
    """Return the page of one simulation."""
    return report_html(_data(result, [("Simulate again", command_line(request))]))


def tuning_page(request: requests.SearchFields, outputs: PlanOutputs, result: TuneResult) -> str:
    """Return the page of a search: the answer, the grid of cuts, and what the choice depends on."""
    best = result.best
    workload = best.workload
    simulate = simulate_request(
        request, best.plan, workload.micro_batch_size, workload.grad_accumulation
    )
    commands = [
        ("Ask again", command_line(request, outputs.but(as_json=False, wide=False))),
        ("Simulate the chosen plan", command_line(simulate)),
        (
            "Change the machine",
            command_line(requests.WhatIfRequest(**dict(simulate), sweep=_SWEEP)),
        ),
    ]
    data = _data(best, commands)
    return report_html(replace(data, search=result, heat_note=NOTE, tie=tie_sentence(result)))


def layouts_page(
    request: requests.LayoutRequest, outputs: SearchOutputs, result: LayoutsResult
) -> str:
    """Return the page of the best layout, with the others as a picture."""
    again = command_line(request, outputs.but(as_json=False, wide=False))
    return report_html(replace(_data(result.best, [("Ask again", again)]), layouts=result))


def scale_page(request: requests.ScaleRequest, outputs: ScaleOutputs, result: ScaleResult) -> str:
    """Return the page of a sweep over numbers of GPUs."""
    last = result.found[-1][0].gpus
    (alone,) = (one for one in requests_of(request) if one.gpus == last)
    commands = [
        ("Ask again", command_line(request, outputs.but(as_json=False, wide=False))),
        (
            f"The layouts of {last:,} GPUs, and the plan of the best",
            command_line(alone, SearchOutputs(out="plan.json")),
        ),
    ]
    return scale_html(result, commands)


def whatif_page(request: requests.WhatIfRequest, result: WhatIfResult) -> str:
    """Return the page of a what-if: the plan on the unchanged case, and the sweep as a plot."""
    data = _data(result.unchanged, [("Ask again", command_line(request))])
    return report_html(replace(data, sweeps=(_sweep(result),)))


_SWEEP: Final = "link_bandwidth=0.5x,1x,2x"


def _data(result: SimulateResult, commands: Sequence[tuple[str, str]]) -> ReportData:
    """Return the data of every page."""
    workload, cluster = result.workload, result.cluster
    return ReportData(
        title=f"{result.model.name}, {_ranks(cluster)}, on {result.profile.name}",
        workload=(
            ("asked", workload_line(result.model, workload, cluster, result.profile.name)),
            ("parameters", f"{result.model.parameters / 1e9:.2f} B"),
            ("profile id", result.profile.content_id),
        ),
        baseline=_shown(result, BASELINE),
        chosen=_shown(result, CHOSEN),
        bound=_shown(result, BOUND),
        result=result,
        pipelines=tuple(_pipelines(result)),
        sensitivity=tuple(s for nudge in NUDGES if (s := _nudge(result, *nudge)) is not None),
        sources=_sources(result.case.profile),
        commands=tuple(commands),
    )


def _ranks(cluster: ClusterSpec) -> str:
    """Return ``tp 4, pp 2``: tp, and what else divides the model."""
    sizes = {name: getattr(cluster, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp")}
    return ", ".join(f"{name} {n}" for name, n in sizes.items() if name == "tp" or n > 1)


def _pipelines(result: SimulateResult) -> Iterator[PipelinePicture]:
    """Yield the pipelines of baseline and plan, with at most two rounds of micro-batches."""
    cluster, workload = result.cluster, result.workload
    micros = min(workload.grad_accumulation, 2 * cluster.pp)
    shown = replace(result.case, workload=replace(workload, grad_accumulation=micros))
    left_out = f", {micros} of {workload.grad_accumulation} micro-batches"
    for name in (BASELINE, CHOSEN) if cluster.pp > 1 else ():
        plan = result.plans[name]
        found = played_pipeline(shown, plan, result.order if name == CHOSEN else None)
        yield PipelinePicture(
            title=STRATEGY_NAMES[plan.strategy]
            + (left_out if micros < workload.grad_accumulation else ""),
            stages=tuple(
                tuple(
                    Pass(
                        kind=task.action.kind, micro=task.action.micro, chunk=task.action.chunk,
                        start_ms=start * MS_PER_NS, end_ms=end * MS_PER_NS,
                    )
                    for task, (start, end) in zip(tasks, spans, strict=True)
                )
                for tasks, spans in zip(found.program.ranks, found.run.tasks, strict=True)
            ),
            end_ms=found.run.makespan_ns * MS_PER_NS,
        )  # fmt: skip


def _shown(result: SimulateResult, name: str) -> ShownTimeline:
    cost = result.case.cost_at(result.variants[name].clock_mhz)
    timeline = result.timelines[name]
    alone = tuple(cost.duration_ns(op.signature) for op in timeline.ops)
    return ShownTimeline(plan=result.plans[name], timeline=timeline, alone_ns=alone)


def _nudge(result: SimulateResult, key: str, low: str, high: str) -> Sensitivity | None:
    """Return the chosen plan's time with one fact of the machine at two other values."""
    times = []
    for value in (low, high):
        try:
            there = changed(result.case, {key: value})
            totals = predict(there, result.plan, result.plan_file.order)
        except DominoTuneError:
            return None
        times.append(totals.makespan_ns * MS_PER_NS)
    return Sensitivity(key=key, low=low, high=high, low_ms=times[0], high_ms=times[1])


def _sources(profile: Profile) -> dict[str, Provenance]:
    found = {name: getattr(profile, name) for name in SECTIONS}
    return {name: section.provenance for name, section in found.items() if section is not None}


def tie_sentence(result: TuneResult) -> str:
    """Return why the chosen plan is not the fastest one; empty where it is."""
    fastest = min(result.trials, key=lambda trial: trial.iteration_ms)
    best, less = result.best, 1 - fastest.iteration_ms / result.best.iteration_ms
    if less <= 0:
        return ""
    own, its = best.peak_memory_gib, fastest.peak_memory_gib
    if own < 0.99 * its or piece_count(best.plan) >= piece_count(fastest.plan):
        why = f"needs {own:.3f} instead of {its:.3f} GiB"
    else:
        why = "has fewer slices"
    batch = fastest.micro_batch_size
    name = fastest.plan.label
    name += f", micro-batch {batch}" * (batch != best.workload.micro_batch_size)
    return (
        f"The fastest plan, {name}, takes {fastest.iteration_ms:,.2f} ms, {less:.2%} less. "
        f"Plans within 1% of the fastest tie, and the chosen plan {why}."
    )


def _sweep(result: WhatIfResult) -> SweepPlot:
    """Return the predicted points; without a sweep, the change beside the unchanged case."""
    points = [point for point in result.points if point.prediction]
    names = [point.changes[result.sweep] if result.sweep else point.name for point in points]
    label = result.sweep or "change"
    if result.sweep is None:
        points, names = [result.base, *points], [result.base.name, *names]
    found = [point.prediction for point in points if point.prediction]
    series = {
        STRATEGY_NAMES["megatron"]: tuple(one.baseline_ms for one in found),
        "this plan": tuple(one.iteration_ms for one in found),
        STRATEGY_NAMES["no_comm"]: tuple(one.no_comm_ms for one in found),
    }
    return SweepPlot(x_label=label, xs=tuple(names), series=series)
