"""Time of answers: whole commands in new processes, and the parts that searches call often."""

from __future__ import annotations

import os
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.search.simulated import CasePlans
from domino_tune.store.profiles import load_profile
from lab.bench.cases import GPT3_13B, paper_case
from lab.bench.facts import REPOSITORY
from lab.verdict import verdict
from simulator.case import Case
from simulator.ordering import order_of
from simulator.plan import SlicePlan
from simulator.predict import plays_of, predict, simulate
from simulator.presets import MODELS

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
    return [_commands(), _parts()]


def _commands() -> Table:
    lines = [
        _line(what, allowed_s, 1.0, times, lambda words=words: _run(words))  # type: ignore[misc]
        for what, allowed_s, times, words in COMMANDS
    ]
    return Table(
        title="Whole commands in new processes: compiled code is kept, answers are not",
        columns=("what", ">target, s", ">wall, s", ">CPU, s", "verdict"),
        rows=lines,
        notes=["Medians; CPU of all processes."],
    )


def _run(words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "domino_tune", *shlex.split(words)], cwd=REPOSITORY, check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _parts() -> Table:
    case, several = _gpt3_175b(), _gpt3_175b()
    several = several.training(
        replace(several.workload, grad_accumulation=4), replace(several.cluster, dp=4)
    )
    order = order_of(case, PLAN)
    ops = len(simulate(case, PLAN, order).ops)
    plays, more = (plays_of(one, PLAN, order, one.cost) for one in (case, several))
    spaces = [_space() for _ in range(3)]
    greedy = [plan for plan in spaces[0].space if plan.order == "greedy"][:500:10]
    asked = iter(greedy)
    problem = spaces[0].problem
    lines = [
        _line("own imports of tune", 200, 1e3, 5, lambda: _python("import domino_tune.verbs.tune")),
        _line("bounds of all plans of GPT-3 13B", 100, 1e3, 2,
              lambda: spaces.pop().problem.quick_bounds_ns),
        _line("one evaluation of a greedy plan: order, memory, play at its clock", 2, 1e3,
              len(greedy), lambda: problem.evaluate(next(asked))),
        _line("a play of GPT-3 175B, 4×4 slices, one micro-batch", 0.1, 1e3, 50,
              lambda: plays.totals(case.cost)),
        _line("the same, four micro-batches and replicas", 0.5, 1e3, 50,
              lambda: more.totals(several.cost)),
        _line("a prediction of it, warm", None, 1e3, 15, lambda: predict(case, PLAN, order)),
        _line(f"full SimPy, {ops:,} ops", None, 1e3, 5, lambda: simulate(case, PLAN, order)),
    ]  # fmt: skip
    return Table(
        title="Parts, in one process",
        columns=("what", ">target, ms", ">wall, ms", ">CPU, ms", "verdict"),
        rows=lines,
    )


def _line(
    what: str, allowed: float | None, unit_s: float, runs: int, action: Callable[[], object]
) -> tuple[str, ...]:
    """Return the median wall and CPU time of ``action``, child processes included, in units of
    which a second has ``unit_s``."""
    walls, cpus = [], []
    for _ in range(runs):
        wall_s, cpu_s = time.perf_counter(), _cpu_s()
        action()
        cpus.append(unit_s * (_cpu_s() - cpu_s))
        walls.append(unit_s * (time.perf_counter() - wall_s))
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    told = ("-", "-") if allowed is None else (f"≤ {allowed:g}", verdict(wall <= allowed))
    return what, told[0], f"{wall:.2f}", f"{cpu:.2f}", told[1]


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)


def _gpt3_175b() -> Case:
    return paper_case(MODELS["gpt3-175b"], 8)


def _space() -> CasePlans:
    """Return the plans of a case with an empty cost model, on GPUs that 16 sequences fit."""
    return CasePlans(case=replace(paper_case(GPT3_13B, 8), profile=load_profile("h200-sxm")))
