"""Time of answers: one iteration, the fastest of all plans, and the command line's help."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.search import SEARCHES, SearchOptions, SearchResult, SpaceSpec, enumerate_plans
from domino_tune.search.simulated import SimulatedPlans
from domino_tune.store.profiles import load_profile
from lab.bench.cases import GPT3_13B, paper_case
from lab.bench.facts import REPOSITORY
from lab.verdict import verdict
from simulator.case import Case
from simulator.ordering import order_of
from simulator.plan import SlicePlan
from simulator.predict import predict, simulate
from simulator.presets import MODELS

PLAN: Final = SlicePlan(row_slices=4, attn_col_slices=4, mlp_col_slices=4)
SHORTCUT_MS: Final = 10.0
FULL_MS: Final = 100.0
FASTEST_MS: Final = 2000.0
HELP_MS: Final = 300.0


def speed() -> list[Table]:
    """Return median CPU and wall times of several runs. Targets apply to CPU time."""
    case = _gpt3_175b()
    order = order_of(case, PLAN)
    ops = len(simulate(case, PLAN, order).ops)
    cold = [_gpt3_175b() for _ in range(9)]
    found = _find_fastest()
    lines = [
        _line("GPT-3 175B, 4×4 slices, stored order: schedule and periodic shortcut", SHORTCUT_MS,
              15, lambda: predict(case, PLAN, order)),
        _line("  the same with an empty cost model", None, len(cold),
              lambda: predict(cold.pop(), PLAN, order)),
        _line("  planning its greedy order, once for each plan", None, 15,
              lambda: order_of(case, PLAN)),
        _line(f"GPT-3 175B, 4×4 slices: schedule and full SimPy, {ops:,} ops", FULL_MS, 9,
              lambda: simulate(case, PLAN, order)),
        _line(f"GPT-3 13B on H200s, TP 8, batch 16: fastest of {found.space_size:,} plans, "
              f"{found.evaluations} simulated", FASTEST_MS, 3, _find_fastest),
        _line("python -m domino_tune --help", HELP_MS, 7, _help),
    ]  # fmt: skip
    return [
        Table(
            title="Speed, one core, contention on",
            columns=("what", ">target", ">CPU ms", ">wall ms", "verdict"),
            rows=lines,
            notes=["Medians. Other work on the machine adds to wall time, so the verdict is on CPU "
                   "time. The search starts with an empty cost model and checks memory."],
        )
    ]  # fmt: skip


def _line(
    what: str, limit_ms: float | None, runs: int, action: Callable[[], object]
) -> tuple[str, ...]:
    """Return the median CPU and wall time of ``action``, child processes included."""
    walls, cpus = [], []
    for _ in range(runs):
        wall_s, cpu_s = time.perf_counter(), _cpu_s()
        action()
        cpus.append(1e3 * (_cpu_s() - cpu_s))
        walls.append(1e3 * (time.perf_counter() - wall_s))
    cpu, wall = statistics.median(cpus), statistics.median(walls)
    if limit_ms is None:
        return what, "-", f"{cpu:.1f}", f"{wall:.1f}", "-"
    return what, f"≤ {limit_ms:g}", f"{cpu:.1f}", f"{wall:.1f}", verdict(cpu <= limit_ms)


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _help() -> None:
    subprocess.run(
        [sys.executable, "-m", "domino_tune", "--help"], cwd=REPOSITORY, check=True,
        stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _gpt3_175b() -> Case:
    return paper_case(MODELS["gpt3-175b"], 8)


def _find_fastest() -> SearchResult:
    """Search rows 1–16 and columns {1, 2, 4, 8} a block, dgrad pieces tied, with an empty cost
    model, on GPUs that 16 sequences fit."""
    case = replace(paper_case(GPT3_13B, 8), profile=load_profile("h200-sxm"))
    space = enumerate_plans(case.model, case.workload, spec=SpaceSpec(dgrad_slices=()))
    plans = SimulatedPlans(case=case, plans=space)
    return SEARCHES["exhaustive"](plans, SearchOptions()).within(space)
