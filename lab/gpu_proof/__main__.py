"""Run plans on one GPU as rank 0 of eight ranks, and compare the times with predictions.

First measure the plans' ops and launches on this GPU. Then run the plans with emulated collectives,
which take the durations of the profile. This tests how ops add up to an iteration, and how ops and
communication slow each other. Last measure the speed of the runtime: the parts of an iteration, and
the same layers in plain torch. A run ends after some minutes; the next one continues. Exit with 1
when a target is missed, 2 when it cannot run, 3 when something is left to measure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from domino_tune.base.errors import RunError
from domino_tune.base.tables import print_line, print_table
from domino_tune.store.files import write_whole
from domino_tune.store.profiles import load_profile, save_profile
from lab.fidelity.page import choice_checks, detail, page, worst_errors
from lab.fidelity.records import kept, setting_from
from lab.fidelity.scores import Setting, score
from lab.gpu_proof.cases import LAYERS, TP, ProofCase, proof_cases, run_case
from lab.gpu_proof.own_profile import own_profile
from lab.gpu_proof.speed import (
    Speed,
    measure_speed,
    speed_checks,
    speed_from,
    speed_payload,
    speed_table,
)
from lab.verdict import Check, at_most, check_table, missed, reported
from simulator.errors import DominoTuneError
from simulator.profile import Profile

ERROR: Final = 0.03
REGRET: Final = 0.01
MISSED, CANNOT, UNFINISHED = 1, 2, 3


def checks(settings: Sequence[Setting]) -> list[Check]:
    """Return the targets beside the measured numbers."""
    total = score(settings)
    return [
        reported("cells (plans of a model, batch and way to launch)", str(total.cells)),
        reported("noise floor: the same plan in two launches", f"{total.noise:.2%}"),
        at_most("iteration time, mean absolute error", ERROR, total.error),
        reported("the same at the GPU's speed while plans ran", f"{total.steady_error:.2%}"),
        *worst_errors(total),
        *choice_checks(total, REGRET),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the folder does not hold, until time is over. Report all results in the folder."""
    options = _parser().parse_args(argv)
    try:
        return run(options, list(proof_cases(options.rounds)))
    except DominoTuneError as error:
        print_line(f"gpu-proof: {error}", sys.stderr)
        return CANNOT


def run(options: argparse.Namespace, cases: Sequence[ProofCase]) -> int:
    """Run ``cases`` as ``main`` does its own. Return the exit code."""
    folder, stop_at = Path(options.folder), time.monotonic() + 60 * options.minutes
    folder.mkdir(parents=True, exist_ok=True)
    base = load_profile(options.profile)
    if not measure_ops(cases, base, folder, stop_at):
        print_line("Time is over before all ops are measured: start it again.", sys.stderr)
        return UNFINISHED
    settings = _settings(cases, folder, stop_at)
    speeds = measure_speeds(cases, folder, stop_at)
    found = [*(checks(settings) if settings else ()), *speed_checks(speeds)]
    counted = reported("settings, speeds of a model", f"{len(settings)}, {len(speeds)}")
    tables = [check_table("Emulated on one GPU", [counted, *found]), *detail(settings)]
    if speeds:
        tables.append(speed_table(speeds, base.machine.peak_tflops["bf16"]))
    for table in tables:
        print_table(table)
    if options.page:
        write_whole(options.page, page(_HEAD, tables))
    left = len(cases) - len(settings) + len({case.model for case in cases}) - len(speeds)
    if left:
        print_line(f"{left} of the settings and speeds are left: start it again.", sys.stderr)
        return UNFINISHED
    return MISSED if missed(found) else 0


def measure_ops(cases: Sequence[ProofCase], base: Profile, folder: Path, stop_at: float) -> bool:
    """Write a profile for each model that has none: ``base`` with its ops and launches measured
    here. Return False when time is over."""
    for model in dict.fromkeys(case.model for case in cases):
        mine = [case for case in cases if case.model == model]
        path = mine[0].profile_in(folder)
        if path.exists():
            continue
        workloads = dict.fromkeys(case.workload for case in mine)
        own = own_profile(base, model, workloads, folder, stop_at, mine[0].spec)
        if own is None:
            return False
        save_profile(own, path)
    return True


def _settings(cases: Sequence[ProofCase], folder: Path, stop_at: float) -> list[Setting]:
    found = []
    for case in cases:
        profile, path = case.profile_in(folder), folder / f"{case.name}.json"
        if path.exists() or time.monotonic() <= stop_at:
            inputs = case.inputs(load_profile(profile).content_id)
            plain = kept(path, inputs, partial(run_case, case, profile), case.name)
            found.append(setting_from(plain))
    return found


def measure_speeds(cases: Sequence[ProofCase], folder: Path, stop_at: float) -> list[Speed]:
    """Return the speed of each model at its first shape. Print and skip a run that fails."""
    found = []
    for model, case in {case.model: case for case in reversed(cases)}.items():
        path = folder / f"speed-{model.name}.json"
        if path.exists() or time.monotonic() <= stop_at:
            try:
                payload, what = speed_payload(case), f"the speed of {model.name}"
                plain = kept(path, payload, partial(measure_speed, case), what)
            except RunError as error:
                print_line(f"gpu-proof: {error}", sys.stderr)
                continue
            found.append(speed_from(plain))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu-proof", description=__doc__)
    parser.add_argument("--profile", default="h200-sxm", metavar="NAME|FILE",
                        help="profile of such a GPU; the plans' own ops and launches are measured "
                        "here instead (default: h200-sxm)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=20, metavar="N",
                        help="runs of each plan in a launch (default: 20)")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=8.0, metavar="N",
                        help="start no measurement after N minutes (default: 8)")  # fmt: skip
    parser.add_argument("--folder", default="out/gpu-proof", metavar="FOLDER",
                        help="folder of results and profiles; the next run takes what it holds "
                        "(default: out/gpu-proof)")  # fmt: skip
    parser.add_argument("--page", default=None, metavar="FILE", help="write the page to FILE")
    return parser


_HEAD: Final = f"""# One GPU as rank 0 of {TP}

Written by `scripts/gpu-proof`: {LAYERS} layers of each model with the true shards of one rank of
{TP}. Collectives are emulated: their durations are those of the profile and **were not measured**.
Ops were measured on this GPU before any plan ran: with every number of row slices, and with column
slices for one and two row slices. Other ops are looked up between these. Launches were measured on
this host: one cost for each kind of op, in a plan of two row slices. The comparison shows how ops
add up, how ops and communication slow each other, and the cost of the host. `link` is the way to
launch ops. The other columns are those of results/fidelity.md.
"""

if __name__ == "__main__":
    sys.exit(main())
