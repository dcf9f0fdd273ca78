"""``scripts/gpu-proof``: one GPU plays rank 0 of eight, against predictions.

The plans' ops and launches are measured first, on this GPU. Collectives are emulated, and their own
durations, the profile's, are put in: what is proved is how ops add up to an iteration, and how they
and communication disturb each other. Then the runtime's speed: where an iteration spends its time,
and plain torch beside it. Comes in pieces of minutes: started again, it goes on. Exits with 1 on a
miss, with 2 where it cannot run, with 3 where something is left to do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.bench.verdict import Check, at_most, check_table, told
from benchmarks.fidelity.page import choice_checks, detail, page
from benchmarks.fidelity.records import keep, read
from benchmarks.fidelity.scores import Setting, score
from benchmarks.gpu_proof.cases import LAYERS, TP, ProofCase, play_case, proof_cases
from benchmarks.gpu_proof.own_profile import own_profile
from benchmarks.gpu_proof.speed import (
    Speed,
    keep_speed,
    measure_speed,
    read_speed,
    speed_asked,
    speed_checks,
    speed_table,
)
from domino_tune.base.errors import RunError
from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.store.files import write_whole
from domino_tune.store.profiles import load_profile, save_profile
from simulator.errors import DominoTuneError
from simulator.profile import Profile

ERROR: Final = 0.03
REGRET: Final = 0.01
MISSED, CANNOT, UNFINISHED = 1, 2, 3


def checks(settings: Sequence[Setting]) -> list[Check]:
    """What must hold, beside what was found."""
    total = score(settings)
    return [
        told("cells (plans of a model, batch and way to launch)", str(total.cells)),
        told("noise floor: the same plan in two launches", f"{total.noise:.2%}"),
        at_most("iteration time, mean absolute error", ERROR, total.error),
        told("the same at the GPU's speed while plans ran", f"{total.steady_error:.2%}"),
        *choice_checks(total, REGRET),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Play what the folder does not hold, until the time is over; report all that it holds."""
    options = _parser().parse_args(argv)
    try:
        return _play(options, list(proof_cases(options.rounds)))
    except DominoTuneError as error:
        print_line(f"gpu-proof: {error}", sys.stderr)
        return CANNOT


def _play(options: argparse.Namespace, cases: Sequence[ProofCase]) -> int:
    folder, stop_at = Path(options.folder), time.monotonic() + 60 * options.minutes
    folder.mkdir(parents=True, exist_ok=True)
    base = load_profile(options.profile)
    if not measure_ops(cases, base, folder, stop_at):
        print_line("Time is over before all ops were measured: start it again.", sys.stderr)
        return UNFINISHED
    settings = _settings(cases, folder, stop_at)
    speeds = _speeds(cases, folder, stop_at)
    found, tables = report(settings, speeds, base.machine.peak_tflops["bf16"])
    for table in tables:
        print_table(table)
    if options.page:
        write_whole(options.page, page(_HEAD, tables))
    left = len(cases) - len(settings) + len({case.model for case in cases}) - len(speeds)
    if left:
        print_line(f"{left} of the settings and speeds are left: start it again.", sys.stderr)
        return UNFINISHED
    return MISSED if any(check.ok is False for check in found) else 0


def report(
    settings: Sequence[Setting], speeds: Sequence[Speed], peak_tflops: float
) -> tuple[list[Check], list[Table]]:
    """What holds of what there is so far, and the tables of it."""
    found = [*(checks(settings) if settings else ()), *speed_checks(speeds)]
    counted = told("settings, speeds of a model", f"{len(settings)}, {len(speeds)}")
    tables = [check_table("Emulated on one GPU", [counted, *found]), *detail(settings)]
    if speeds:
        tables.append(speed_table(speeds, peak_tflops))
    return found, tables


def measure_ops(
    cases: Sequence[ProofCase], base: Profile, folder: Path, stop_at: float
) -> bool:  # fmt: skip
    """A profile a model that has none yet: ``base`` with what its ops and launches take here.
    False where time is up."""
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
        profile = case.profile_in(folder)
        kept, asked = folder / f"{case.name}.json", case.asked(load_profile(profile).content_id)
        if not kept.exists():
            if time.monotonic() > stop_at:
                continue
            print_line(f"{case.name} ...", sys.stderr)
            keep(kept, play_case(case, profile), asked)
        found.append(read(kept, asked))
    return found


def _speeds(cases: Sequence[ProofCase], folder: Path, stop_at: float) -> list[Speed]:
    """Of each model at its first shape; a run that fails is told, and left."""
    found = []
    for model, case in {case.model: case for case in reversed(cases)}.items():
        kept, asked = folder / f"speed-{model.name}.json", speed_asked(case)
        if not kept.exists():
            if time.monotonic() > stop_at:
                continue
            print_line(f"the speed of {model.name} ...", sys.stderr)
            try:
                keep_speed(kept, measure_speed(case), asked)
            except RunError as error:
                print_line(f"gpu-proof: {error}", sys.stderr)
                continue
        found.append(read_speed(kept, asked))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu-proof", description=__doc__)
    parser.add_argument("--profile", default="h200-sxm", metavar="NAME|FILE",
                        help="of such a GPU, for all but the plans' own ops and launches, which "
                        "are measured first (default: h200-sxm)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=20, metavar="N",
                        help="how often a launch runs each plan (default: 20)")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=8.0, metavar="N",
                        help="begin nothing after this long (default: 8)")  # fmt: skip
    parser.add_argument("--folder", default="out/gpu-proof", metavar="FOLDER",
                        help="keeps what is finished, profiles among it, which a second start "
                        "takes as they are (default: out/gpu-proof)")  # fmt: skip
    parser.add_argument("--page", default=None, metavar="FILE", help="write the page here")
    return parser


_HEAD: Final = f"""# One GPU as rank 0 of {TP}

Written by `scripts/gpu-proof`: {LAYERS} layers of each model with the true shards of one rank of
{TP}. Collectives are emulated: their own durations are the profile's and **were put in, not
measured**. Ops were measured on this GPU before any plan ran: with every number of row slices, and
with column pieces for one and two of them; others are looked up between these. So were launches, on
this host: one cost for each kind of op, of a plan of two row slices. What is held against
predictions is how ops add up, how they and communication disturb each other, and the host. `link`
says how ops were launched; columns as in docs/fidelity.md.
"""

if __name__ == "__main__":
    sys.exit(main())
