"""Measured tuning compared with exhaustive measurement: regret of the plan that it finds."""

from __future__ import annotations

import math
import operator
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from domino_tune.base.progress import no_progress
from domino_tune.base.tables import Table
from domino_tune.requests import ProfileRequest, WorkloadFields
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.runtime.plan_runs import run_plans
from domino_tune.search import SpaceSpec, enumerate_plans
from domino_tune.search.measured import TRIALS, MeasuredOptions, search_measured
from domino_tune.search.pool import measured_pool
from domino_tune.search.simulated import SimulatedPlans
from domino_tune.store.evidence import Evidence
from domino_tune.store.files import write_whole
from domino_tune.store.formats.model_file import dump_model
from domino_tune.verbs.profile import profile
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.tune_measured import MeasuringSession, question_of
from lab.bench.runtime import need
from lab.fidelity.scores import within_rounds
from lab.fidelity.settings import MODELS
from lab.verdict import Check, at_most, check_table, reported
from simulator.case import Case
from simulator.plan import SlicePlan

LINK: Final = "1gbit"
BITS_PER_S: Final = 10**9
NAME: Final = "gpt-small"
SPACE: Final = SpaceSpec(
    row_slices=(1, 2, 4), col_slices=(1, 2), dgrad_slices=(), merge_wgrads=(False,)
)
"""Few enough plans to run all: every order, row slices, column slices, and both."""
ROUNDS: Final = 12
DUEL_ROUNDS: Final = 40
"""Rounds of the last launch: after few rounds, the best of many plans looks faster than it is."""
REGRET: Final = 0.02


def tune_measure() -> list[Table]:
    """Profile TP 2 on two emulated hosts, run all plans, then search without their times."""
    need("torch")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DOMINO_TUNE_HOME"] = folder
        checks = _checks(_profiled(Path(folder)), Path(folder))
    title = f"tune --objective measure beside an exhaustive measurement: {NAME}, {LINK}"
    return [check_table(title, checks)]


def _checks(case: Case, folder: Path) -> list[Check]:
    spec = LaunchSpec(tp=2, emulate_link_bits_per_s=BITS_PER_S)
    problem = SimulatedPlans(
        case=case, plans=enumerate_plans(case.model, case.workload, spec=SPACE)
    )
    pool = measured_pool(problem, list(problem.plans))
    times = _run(case, problem, pool.plans, spec, ROUNDS)
    with Evidence(folder / "evidence.jsonl", question_of(case, spec)) as evidence:
        session = MeasuringSession(
            case=case, problem=problem, pool=pool, spec=spec, evidence=evidence,
            progress=no_progress,
        )  # fmt: skip
        found = search_measured(
            pool, session.measure, session.compare, MeasuredOptions(), session.ratios
        )
    simulated = min(range(len(pool.plans)), key=lambda index: float(pool.log_prior[index]))
    best = min(range(len(times)), key=lambda index: statistics.median(times[index]))
    rivals = sorted({best, found.best, simulated, 0})
    last = _run(case, problem, [pool.plans[index] for index in rivals], spec, DUEL_ROUNDS)
    duel = dict(zip(rivals, last, strict=True))
    return [
        reported(f"plans run exhaustively, {ROUNDS} rounds", str(len(pool.plans))),
        reported("the best of them", pool.plans[best].label),
        at_most("plans measured, baseline included", TRIALS, len(session.ratios.evaluated),
                unit="plans", digits=0),
        at_most(f"regret of what was found ({pool.plans[found.best].label})", REGRET,
                regret(duel[found.best], duel[best])),
        reported("regret of the simulator's best, not run",
             f"{regret(duel[simulated], duel[best]):.2%}"),
        reported("regret of the baseline", f"{regret(duel[0], duel[best]):.2%}"),
    ]  # fmt: skip


def _profiled(folder: Path) -> Case:
    model, workload = MODELS[NAME]
    file = folder / "model.json"
    write_whole(file, dump_model(model))
    shape: dict[str, Any] = {
        "seq_length": workload.seq_length, "micro_batch_size": workload.micro_batch_size,
        "dtype": workload.dtype, "tp": 2,
    }  # fmt: skip
    profile(ProfileRequest(name=NAME, for_model=str(file), emulate_link=LINK, samples=10, **shape))
    return resolve(WorkloadFields(model=str(file), profile=NAME, **shape))


def _run(
    case: Case,
    problem: SimulatedPlans,
    plans: Sequence[SlicePlan],
    spec: LaunchSpec,
    rounds: int,
) -> list[list[float]]:
    """Return log times of each plan in each round, relative to the mean of the round."""
    planned = [(plan, problem.order(plan)) for plan in plans]
    found = run_plans(case.model, case.workload, case.cluster, planned, rounds, spec)
    return within_rounds([one.makespans_ns for one in found])


def regret(times: Sequence[float], best: Sequence[float]) -> float:
    """Return the relative loss of a plan against the best, from log times of the same rounds."""
    return math.exp(statistics.median(map(operator.sub, times, best))) - 1
