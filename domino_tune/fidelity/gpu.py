"""``scripts/gpu-proof``: one GPU plays rank 0 of eight, against predictions.

The plans' ops are measured first, on this GPU. Collectives are emulated, and their own durations,
the profile's, are put in: what is proved is how ops add up to an iteration, and how they and
communication disturb each other. Then the runtime's speed: where an iteration spends its time, and
plain torch beside it. Comes in pieces of minutes: started again,
it goes on. Exits with 1 on a miss, with 2 where it cannot run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from domino_tune.bench.verdict import Check, at_most, check_table, told
from domino_tune.case import resolve
from domino_tune.emulation import as_emulated
from domino_tune.fidelity.gpu_speed import (
    STEPS,
    Speed,
    keep_speed,
    measure_speed,
    read_speed,
    speed_checks,
    speed_table,
)
from domino_tune.fidelity.kept import keep, read
from domino_tune.fidelity.loop import model_file, plans_of, run_alone, setting_of
from domino_tune.fidelity.own_profile import own_profile
from domino_tune.fidelity.page import choice_checks, detail, page
from domino_tune.fidelity.scores import Setting, score
from domino_tune.requests import WorkloadFields
from domino_tune.runtime.launch_spec import Backend, LaunchSpec
from domino_tune.store.files import write_whole
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.tables import print_line, print_table
from simulator.errors import DominoTuneError
from simulator.presets import MODELS
from simulator.profile import Profile
from simulator.specs import ModelSpec, Workload

LAYERS: Final = 4
TP: Final = 8
ERROR: Final = 0.03
REGRET: Final = 0.01
SHAPES: Final = (
    ("gpt3-13b", 2048, 8), ("llama2-13b", 4096, 4), ("gpt3-13b", 2048, 4), ("llama2-13b", 4096, 2),
)  # fmt: skip
"""Preset, sequence length, micro-batch; each eager and as a CUDA graph."""


@dataclass(frozen=True, kw_only=True)
class ProofCase:
    """One setting: a few layers of a model, on one rank of ``tp``."""

    model: ModelSpec
    workload: Workload
    tp: int
    cuda_graph: bool
    profile: str
    rounds: int
    backend: Backend = "nccl"

    @property
    def spec(self) -> LaunchSpec:
        """One rank, alone."""
        return LaunchSpec(tp=self.tp, backend=self.backend, lone=True)

    @property
    def launch(self) -> str:
        """How ops are launched."""
        return "graph" if self.cuda_graph else "eager"

    @property
    def name(self) -> str:
        """Of its file."""
        work = self.workload
        size = f"{work.micro_batch_size}x{work.seq_length}"
        return f"{self.model.name}-{size}-tp{self.tp}-{self.launch}"


def proof_cases(profile: str, rounds: int) -> Iterator[ProofCase]:
    """All of them, the larger batches first."""
    for preset, seq, batch in SHAPES:
        model = replace(
            MODELS[preset], name=f"{preset}-{LAYERS}-layers", num_hidden_layers=LAYERS,
            attention_dropout=0.0,
        )  # fmt: skip
        workload = Workload(seq_length=seq, micro_batch_size=batch, dtype="bf16")
        for cuda_graph in (False, True):
            yield ProofCase(
                model=model, workload=workload, tp=TP, cuda_graph=cuda_graph, profile=profile,
                rounds=rounds,
            )  # fmt: skip


def play_case(case: ProofCase) -> Setting:
    """Tune, run all plans in two launches, compare."""
    work = case.workload
    asked = WorkloadFields(
        model=str(model_file(case.model)), profile=case.profile, tp=case.tp,
        seq_length=work.seq_length, micro_batch_size=work.micro_batch_size, dtype=work.dtype,
        cuda_graph=case.cuda_graph,
    )  # fmt: skip
    began, spec = time.monotonic(), case.spec
    profiled = resolve(asked)
    setup = as_emulated(profiled, spec)
    chosen = plans_of(setup, asked)
    launches = [run_alone(setup, chosen, case.rounds, spec) for _ in range(2)]
    return setting_of(
        setup, setup, chosen, launches, launches[0],
        link=case.launch, profile_id=profiled.profile.content_id,
        profile_s=time.monotonic() - began,
    )  # fmt: skip


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
        return _play(options)
    except DominoTuneError as error:
        print_line(f"gpu-proof: {error}", sys.stderr)
        return 2


def _play(options: argparse.Namespace) -> int:
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    stop_at = time.monotonic() + 60 * options.minutes
    profile = folder / "profile.json"
    cases = list(proof_cases(str(profile), options.rounds))
    base = load_profile(options.profile)
    if not profile.exists() and not measure_ops(cases, base, profile, stop_at):
        print_line("Time is over before all ops were measured: start it again.", sys.stderr)
        return 1
    settings = _settings(cases, folder, stop_at)
    speeds = _speeds(cases, folder, stop_at)
    if not settings:
        return 1
    found = [*checks(settings), *speed_checks(speeds)]
    tables = [
        check_table("Emulated on one GPU", found),
        *detail(settings),
        speed_table(speeds, base.machine.peak_tflops["bf16"]),
    ]
    for table in tables:
        print_table(table)
    if options.page:
        write_whole(options.page, page(_HEAD, tables))
    return int(any(check.ok is False for check in found))


def measure_ops(
    cases: Sequence[ProofCase], base: Profile, path: Path, stop_at: float
) -> bool:  # fmt: skip
    """Write ``base`` with the ops that ``cases`` play measured here; False where time is up."""
    asked = {(case.model, case.workload): case for case in cases}
    spec = next(iter(asked.values())).spec
    own = own_profile(base, asked, path.with_name("ops.json"), stop_at, spec)
    if own is not None:
        save_profile(own, path)
    return own is not None


def _settings(cases: Sequence[ProofCase], folder: Path, stop_at: float) -> list[Setting]:
    found = []
    for case in cases:
        kept, asked = folder / f"{case.name}.json", asdict(case)
        if not kept.exists():
            if time.monotonic() > stop_at:
                continue
            print_line(f"{case.name} ...", sys.stderr)
            keep(kept, play_case(case), asked)
        found.append(read(kept, asked))
    return found


def _speeds(cases: Sequence[ProofCase], folder: Path, stop_at: float) -> list[Speed]:
    """Of each model at its first shape."""
    found = []
    for model, case in {case.model: case for case in reversed(cases)}.items():
        kept = folder / f"speed-{model.name}.json"
        if not kept.exists():
            if time.monotonic() > stop_at:
                continue
            print_line(f"the speed of {model.name} ...", sys.stderr)
            keep_speed(kept, measure_speed(model, case.workload, case.spec, STEPS))
        found.append(read_speed(kept))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu-proof", description=__doc__)
    parser.add_argument("--profile", default="h200-sxm", metavar="NAME|FILE",
                        help="of such a GPU, for all but the plans' own ops, which are measured "
                        "first (default: h200-sxm)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=20, metavar="N",
                        help="how often a launch runs each plan (default: 20)")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=8.0, metavar="N",
                        help="begin no setting after this long (default: 8)")  # fmt: skip
    parser.add_argument("--folder", default="out/gpu-proof", metavar="FOLDER",
                        help="keeps what is finished (default: out/gpu-proof)")  # fmt: skip
    parser.add_argument("--page", default=None, metavar="FILE", help="write the page here")
    return parser


_HEAD: Final = f"""# One GPU as rank 0 of {TP}

Written by `scripts/gpu-proof`: {LAYERS} layers of each model with the true shards of one rank of
{TP}. Collectives are emulated: their own durations are the profile's and **were put in, not
measured**. What each op takes was measured on this GPU before any plan ran. What is held against
predictions is how ops add up, how they and communication disturb each other, and the host. `link`
says how ops were launched; columns as in docs/fidelity.md.
"""

if __name__ == "__main__":
    sys.exit(main())
