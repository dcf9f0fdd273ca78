"""The best layouts, where Domino pays, and the time of answers."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.requests import LayoutRequest
from domino_tune.results.layouts import LayoutResult, LayoutsResult
from domino_tune.search.simulated import CasePlans
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.layouts import tune_layouts
from lab.bench.common import GPT3_13B, REPOSITORY, paper_case
from lab.verdict import at_most, check_table, table, verdict
from simulator.errors import InfeasiblePlanError
from simulator.ordering import order_of
from simulator.plan import SlicePlan
from simulator.predict import plays_of, predict, simulate
from simulator.presets import MODELS


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
    """Return the best layouts with Domino and without, and how long the searches took."""
    lines, checks = [], []
    for profile in ("h100-dgx", "a100-sxm", "b200-sxm"):
        for job in JOBS:
            found = _searched(profile, job)
            what = (profile, job.model, f"{job.gpus:,}", f"{job.global_batch_size:,}")
            lines.append((*what, *_cells(found)))
            if found and job.limit_s:
                what_s = f"{job.model}, {job.gpus} {profile}"
                checks.append(at_most(what_s, job.limit_s, found.seconds, "s", 1))
    return [
        table(
            "The best layouts: with Domino, and without",
            "profile|model|>GPUs|>batch|with|>tokens/s/GPU|without|>tokens/s/GPU|>gain"
            "|>best gain in a layout|>plans|>simulated|>s", lines,
            "gain: of the best layout over the best one without Domino; best gain in a layout: "
            "among the ten best, over the same layout without it.",
        ),
        check_table("Time of a search on two cores", checks),
    ]  # fmt: skip


def _searched(profile: str, job: Job) -> LayoutsResult | None:
    asked = {name: value for name, value in job._asdict().items() if name != "limit_s"}
    try:
        return tune_layouts(LayoutRequest(profile=profile, **asked))
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
    if one is None:
        return "nothing fits", ""
    sliced = one.plan.strategy == "domino"
    cut = f" {one.plan.row_slices}x{one.plan.mlp_col_slices}" if sliced else ""
    return f"{one.label}{cut}", f"{one.tokens_per_second_per_gpu:,.0f}"


# Time of answers ---------------------------------------------------------------------------------

PLAN: Final = SlicePlan(row_slices=4, attn_col_slices=4, mlp_col_slices=4)
H100: Final = "--profile h100-dgx"
COMMANDS: Final = (
    ("tune, GPT-3 13B, TP 8, with verdict and map", 1.5, 3,
     f"tune --model gpt3-13b {H100} --tp 8 --seq-length 1024 --micro-batch-size 16"),
    ("simulate of one plan, with its rivals", 0.8, 5,
     f"simulate --model gpt3-13b {H100} --tp 8 --seq-length 2048 --micro-batch-size 4 "
     "--row-slices 2"),
    ("tune of 8 layers of 70B, one sequence of 32k", 3.0, 1,
     f"tune --model llama3-70b --set num_hidden_layers=8 {H100} --tp 8 --seq-length 32768 "
     "--micro-batch-size 1"),
    ("layout, Llama 3 70B on 64 GPUs", 4.0, 1,
     f"layout --model llama3-70b {H100} --gpus 64 --global-batch-size 128 --seq-length 8192"),
    ("layout, Llama 3 405B on 1,024 GPUs", 20.0, 1,
     f"layout --model llama3-405b {H100} --gpus 1024 --global-batch-size 512 --seq-length 8192"),
    ("--help", 0.25, 7, "--help"),
)  # fmt: skip
"""What, the seconds that are allowed, how often it is run, and the arguments."""


def speed() -> list[Table]:
    """Return median wall and CPU times. Other work on the machine adds to both."""
    lines = [
        _line(what, allowed_s, 1.0, times, partial(_run, "-m", "domino_tune", *shlex.split(words)))
        for what, allowed_s, times, words in COMMANDS
    ]
    title = "Whole commands in new processes: compiled code is kept, answers are not"
    columns = "what|>target, s|>wall, s|>CPU, s|verdict"
    return [table(title, columns, lines, "Medians; CPU of all processes."), _parts()]


def _run(*words: str) -> None:
    subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _parts() -> Table:
    case = several = paper_case(MODELS["gpt3-175b"], 8)
    several = several.training(
        replace(several.workload, grad_accumulation=4), replace(several.cluster, dp=4)
    )
    order = order_of(case, PLAN)
    plays, more = (plays_of(one, PLAN, order, one.cost) for one in (case, several))
    # Cases with an empty cost model, on GPUs that 16 sequences fit.
    job = replace(paper_case(GPT3_13B, 8), profile=load_profile("h200-sxm"))
    spaces = [CasePlans(case=replace(job)) for _ in range(3)]
    greedy = [plan for plan in spaces[0].space if plan.order == "greedy"][:500:10]
    asked, problem, ops = iter(greedy), spaces[0].problem, len(simulate(case, PLAN, order).ops)
    parts: tuple[tuple[str, float | None, int, Callable[[], object]], ...] = (
        ("own imports of tune", 200, 5, lambda: _run("-c", "import domino_tune.verbs.tune")),
        ("bounds of all plans of GPT-3 13B", 100, 2, lambda: spaces.pop().problem.quick_bounds_ns),
        ("one evaluation of a greedy plan: order, memory, play at its clock", 2, len(greedy),
         lambda: problem.evaluate(next(asked))),
        ("a play of GPT-3 175B, 4×4 slices, one micro-batch", 0.1, 50,
         lambda: plays.totals(case.cost)),
        ("the same, four micro-batches and replicas", 0.5, 50, lambda: more.totals(several.cost)),
        ("a prediction of it, warm", None, 15, lambda: predict(case, PLAN, order)),
        (f"full SimPy, {ops:,} ops", None, 5, lambda: simulate(case, PLAN, order)),
    )  # fmt: skip
    lines = [_line(what, allowed, 1e3, times, act) for what, allowed, times, act in parts]
    title = "Parts, in one process"
    return table(title, "what|>target, ms|>wall, ms|>CPU, ms|verdict", lines)


def _line(
    what: str, allowed: float | None, unit_s: float, runs: int, action: Callable[[], object]
) -> tuple[str, ...]:
    """Return medians of ``action``, child processes included, by units of 1 / ``unit_s`` s."""
    walls, cpus = [], []
    for _ in range(runs):
        wall_s, cpu_s = time.perf_counter(), _cpu_s()
        action()
        cpus.append(unit_s * (_cpu_s() - cpu_s))
        walls.append(unit_s * (time.perf_counter() - wall_s))
    wall, cpu = median(walls), median(cpus)
    told = ("-", "-") if allowed is None else (f"≤ {allowed:g}", verdict(wall <= allowed))
    return what, told[0], f"{wall:.2f}", f"{cpu:.2f}", told[1]


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
