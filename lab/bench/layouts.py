"""The best layouts of five models on 8 to 4,096 GPUs, with and without Domino: where it pays."""

from __future__ import annotations

from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.requests import LayoutRequest
from domino_tune.results.layouts import LayoutResult, LayoutsResult
from domino_tune.verbs.layouts import tune_layouts
from lab.verdict import at_most, check_table
from simulator.errors import InfeasiblePlanError

PROFILES: Final = ("h100-dgx", "a100-sxm", "b200-sxm")


class Job(NamedTuple):
    """A model on some GPUs; the batch is in sequences, ``limit_s`` is for the search."""

    model: str
    seq_length: int
    gpus: int
    global_batch_size: int
    limit_s: float | None = None


JOBS: Final = (
    Job("llama3-8b", 8192, 8, 128), Job("llama3-8b", 8192, 64, 512),
    Job("gpt3-13b", 2048, 16, 256), Job("gpt3-13b", 2048, 128, 1024),
    Job("llama3-70b", 8192, 64, 256, 10.0), Job("llama3-70b", 8192, 512, 1024),
    Job("gpt3-175b", 2048, 512, 1536), Job("llama3-405b", 8192, 1024, 1024, 60.0),
    Job("llama3-405b", 8192, 4096, 2048),
)  # fmt: skip


def layouts() -> list[Table]:
    """Return the best layouts, and how long the searches took."""
    found = {(profile, job): _search(profile, job) for profile in PROFILES for job in JOBS}
    return [
        Table(
            title="The best layouts: with Domino, and without",
            columns=(
                "profile", "model", ">GPUs", ">batch", "with", ">tokens/s/GPU", "without",
                ">tokens/s/GPU", ">gain", ">best gain in a layout", ">plans", ">simulated", ">s",
            ),
            rows=[
                (profile, job.model, f"{job.gpus:,}", f"{job.global_batch_size:,}", *_cells(one))
                for (profile, job), one in found.items()
            ],
            notes=[
                "gain: of the best layout over the best one without Domino; best gain in a layout: "
                "among the ten best, over the same layout without it."
            ],
        ),
        check_table(
            "Time of a search on two cores",
            [
                at_most(f"{job.model}, {job.gpus} {profile}", job.limit_s, one.seconds, "s", 1)
                for (profile, job), one in found.items()
                if one and job.limit_s
            ],
        ),
    ]  # fmt: skip


def _search(profile: str, job: Job) -> LayoutsResult | None:
    request = LayoutRequest(
        model=job.model, profile=profile, seq_length=job.seq_length, gpus=job.gpus,
        global_batch_size=job.global_batch_size,
    )  # fmt: skip
    try:
        return tune_layouts(request)
    except InfeasiblePlanError:
        return None


def _cells(found: LayoutsResult | None) -> tuple[str, ...]:
    if found is None:
        return ("nothing fits", *[""] * 8)
    best = found.layouts[0]
    gains = [one.domino_gain_here for one in found.layouts if one.domino_gain_here]
    return (
        *_layout(best), *_layout(found.best_without_domino),
        f"{best.domino_gain:.3f}" if best.domino_gain else "", f"{max(gains, default=1.0):.3f}",
        f"{found.plans:,}", f"{found.evaluations:,}", f"{found.seconds:.1f}",
    )  # fmt: skip


def _layout(one: LayoutResult | None) -> tuple[str, str]:
    """Return a layout with its cut, and its speed."""
    if one is None:
        return "nothing fits", ""
    sliced = one.plan.strategy == "domino"
    cut = f" {one.plan.row_slices}x{one.plan.mlp_col_slices}" if sliced else ""
    return f"{one.label}{cut}", f"{one.tokens_per_second_per_gpu:,.0f}"
