"""Runs to calibrate by: which cannot have been, and which are samples of one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from statistics import mean
from typing import Final

from domino_tune.search.calibration import MeasuredRun
from simulator.dtypes import GIB, MS_PER_NS
from simulator.errors import DominoTuneError, InputError
from simulator.memory import peak_bytes
from simulator.model_flops import executed_per_gpu

LEAST_RUNS: Final = 2
MOST_APART: Final = 0.25
"""By how much samples of one run may differ, as a share of their mean."""
MOST_LABELS: Final = 4
"""Samples of a run that a message names."""


def check_possible(run: MeasuredRun) -> None:
    """Raise InputError, which names it, for a run that is faster than its GPUs can be or needs more
    memory than they have."""
    _check_rate(run)
    machine = run.case.profile.machine
    try:
        needed_gib = peak_bytes(run.case, run.plan) / GIB
    except DominoTuneError as error:
        raise InputError(f"{run.label}: {error}") from None
    if needed_gib > machine.gpu_memory_gib:
        raise InputError(
            f"{run.label}: it needs {needed_gib:,.0f} GiB a GPU, where {machine.gpu} has "
            f"{machine.gpu_memory_gib:,.0f}, so it cannot have run as it is given; probably the "
            "layout, the batch, recomputation or the model is another. Correct it, or leave it out."
            f" {run.note}".rstrip()
        )


def _check_rate(run: MeasuredRun) -> None:
    case = run.case
    math = case.workload.math
    peak = case.profile.machine.peaks.get(math, 0.0)
    tf32 = "it multiplied in TF32 (implementation_set tf32=true), " if math == "fp32" else ""
    rate = 1e-12 * executed_per_gpu(case, round(run.measured_ms / MS_PER_NS))
    if peak and rate > peak:
        raise InputError(
            f"{run.label}: {run.measured_ms:,.6g} ms would be {rate:,.0f} TFLOP/s a GPU, where "
            f"{case.profile.machine.gpu} has {peak:,.4g} in {math}; probably {tf32}the "
            "number of GPUs, the batch or the model is another, or the time is not of a whole "
            f"iteration. Correct it, or leave it out. {run.note}".rstrip()
        )


def merged_samples(runs: Sequence[MeasuredRun]) -> tuple[Sequence[MeasuredRun], tuple[str, ...]]:
    """Return runs of layouts that differ, those of one layout put together as their mean, and
    notes that say which were.

    Raise InputError for samples that contradict each other, and fewer than LEAST_RUNS layouts.
    """
    by_layout: dict[Hashable, list[MeasuredRun]] = {}
    for run in runs:
        by_layout.setdefault(_layout(run), []).append(run)
    layouts = list(by_layout.values())
    merged = [_merged(same) for same in layouts]
    if len(merged) < LEAST_RUNS:
        raise InputError(
            f"All runs are of one layout: {_labels(layouts[0])}. Give {LEAST_RUNS} or more of "
            "layouts that differ."
        )
    notes = tuple(
        f"{_labels(same)} are of one layout, so they count as {len(same)} samples of one run, "
        f"{one.measured_ms:,.6g} ms."
        for one, same in zip(merged, layouts, strict=True)
        if len(same) > 1
    )
    return merged, notes


def _layout(run: MeasuredRun) -> Hashable:
    """Return what runs of the same job in the same layout have in common."""
    case = run.case
    return case.model, case.workload, case.cluster, case.sequence_parallel, run.plan


def _merged(same: Sequence[MeasuredRun]) -> MeasuredRun:
    if len(same) == 1:
        return same[0]
    times = [run.measured_ms for run in same]
    if max(times) - min(times) > MOST_APART * mean(times):
        raise InputError(
            f"{_labels(same)} are of one layout and contradict each other: {min(times):,.6g} to "
            f"{max(times):,.6g} ms. Check their options and times, or leave one out."
        )
    rounding_ms = max(run.rounding_ms for run in same)
    return replace(same[0], label=_labels(same), measured_ms=mean(times), rounding_ms=rounding_ms)


def _labels(same: Sequence[MeasuredRun]) -> str:
    named = [run.label for run in same[:MOST_LABELS]]
    more = len(same) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
