"""The best layouts, where Domino pays, and the time of answers."""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median
from typing import Any, Final

from domino_tune.base.memory import rare_collections
from domino_tune.base.tables import Table
from domino_tune.requests import LayoutRequest
from domino_tune.results.layouts import LayoutResult, LayoutsResult
from domino_tune.search.simulated import CasePlans
from domino_tune.verbs.layouts import tune_layouts
from lab import told
from lab.bench.common import GPT3_13B, REPOSITORY, paper_case, shown
from lab.verdict import at_most, check_table, verdict
from simulator.errors import InfeasiblePlanError
from simulator.greedy import order_of
from simulator.plan import SlicePlan
from simulator.predict import plays_of, predict, simulate
from simulator.presets import MODELS

TOLD: Final[dict[str, Any]] = told(__file__)
PROFILES: Final = ("h100-dgx", "a100-sxm", "b200-sxm")
IMPORT: Final = "import domino_tune.verbs.tune"
OURS: Final = re.compile(r"import time: +(\d+) \|[^|]*\| +(?:domino_tune|simulator)\b")
PLAN: Final = SlicePlan(row_slices=4, attn_col_slices=4, mlp_col_slices=4)


def layouts() -> list[Table]:
    """Return the best layouts with Domino and without, and how long the searches took."""
    lines, checks = [], []
    for profile, (model, seq, gpus, batch, *limit) in product(PROFILES, TOLD["jobs"]):
        asked = LayoutRequest(
            profile=profile, model=model, seq_length=seq, gpus=gpus, global_batch_size=batch
        )
        found = None
        with suppress(InfeasiblePlanError):
            found = tune_layouts(asked)
        lines.append((profile, model, f"{gpus:,}", f"{batch:,}", *_cells(found)))
        if found and limit:
            checks.append(at_most(f"{model}, {gpus} {profile}", limit[0], found.seconds, "s", 1))
    return [shown("layouts", lines), check_table("Time of a search on two cores", checks)]


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


def speed() -> list[Table]:
    """Return median wall and CPU times. Other work on the machine adds to both."""
    lines = [
        _line(what, allowed_s, 1.0, times, partial(_run, "-m", "domino_tune", *shlex.split(words)))
        for what, allowed_s, times, words in TOLD["commands"]
    ]
    return [shown("commands", lines), _parts()]


def _run(*words: str) -> str:
    """Return the stderr of a Python that compiles its modules once, as an installation does."""
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env={**kept, "OMP_NUM_THREADS": "1"},
    ).stderr  # fmt: skip


def _parts() -> Table:
    case = paper_case(MODELS["gpt3-175b"], 8)
    work, ranks = replace(case.workload, grad_accumulation=4), replace(case.cluster, dp=4)
    several = case.training(work, ranks)
    order, ops = order_of(case, PLAN), len(simulate(case, PLAN).ops)
    plays, more = (plays_of(one, PLAN, order, one.cost) for one in (case, several))
    problem, *problems = [CasePlans(case=paper_case(GPT3_13B, 8)).problem for _ in range(4)]
    asked = iter(greedy := [plan for plan in problem.plans if plan.order == "greedy"][:500:10])
    parts: tuple[tuple[str, float | None, int, Callable[[], object]], ...] = (
        ("a process that imports tune, numpy and pydantic", None, 5, lambda: _run("-c", IMPORT)),
        ("bounds of all plans of GPT-3 13B", 100, 3, lambda: problems.pop().quick_bounds_ns),
        ("one evaluation of a greedy plan: order, memory, play at its clock", 2, len(greedy),
         lambda: problem.evaluate(next(asked))),
        ("a play of GPT-3 175B, 4×4 slices, one micro-batch", 0.1, 50,
         lambda: plays.totals(case.cost)),
        ("the same, four micro-batches and replicas", 0.5, 50, lambda: more.totals(several.cost)),
        ("a prediction of it, warm", None, 15, lambda: predict(case, PLAN, order)),
        (f"full SimPy, {ops:,} ops", None, 5, lambda: simulate(case, PLAN, order)),
    )  # fmt: skip
    told = (OURS.findall(_run("-X", "importtime", "-c", IMPORT)) for _ in range(5))
    own_ms = median(sum(map(int, found)) / 1e3 for found in told)
    own = "own modules of it", "≤ 200", f"{own_ms:.0f}", "", verdict(own_ms <= 200)
    with rare_collections():  # as in the commands
        first, *lines = [_line(what, limit, 1e3, times, act) for what, limit, times, act in parts]
    return shown("parts", [first, own, *lines])


def _line(what: str, allowed: float | None, unit: float, runs: int, action: Any) -> tuple[str, ...]:
    """Return medians of ``action``, child processes included, by units of 1 / ``unit`` s."""
    walls, cpus = [], []
    for _ in range(runs):
        wall_s, cpu_s = time.perf_counter(), _cpu_s()
        action()
        cpus.append(unit * (_cpu_s() - cpu_s))
        walls.append(unit * (time.perf_counter() - wall_s))
    wall, cpu = median(walls), median(cpus)
    limit = ("-", "-") if allowed is None else (f"≤ {allowed:g}", verdict(wall <= allowed))
    return what, limit[0], f"{wall:.2f}", f"{cpu:.2f}", limit[1]


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
