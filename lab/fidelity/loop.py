"""Profile, tune, run plans in two launches, and compare with predictions: the runs for one model on
one link, and the program of all. Exit with 1 when a target is missed."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from domino_tune.base.tables import print_line, print_table
from domino_tune.base.units import parse_quantity
from domino_tune.measure.machine import cpu_name
from domino_tune.requests import ProfileRequest, TuneRequest
from domino_tune.requests.fields import WorkloadFields
from domino_tune.runtime import plan_runs
from domino_tune.runtime.launch.launch import LaunchSpec
from domino_tune.runtime.plan_runs import Measured
from domino_tune.store.files import user_profiles_dir, write_whole
from domino_tune.store.shelf import dump_model, load_model
from domino_tune.verbs.machines import machines_of, middle_of
from domino_tune.verbs.profile import profile
from domino_tune.verbs.resolve import Chosen, resolve
from domino_tune.verbs.tune import tune
from domino_tune.verbs.validate import as_emulated, plan_paces
from lab.fidelity import scores
from lab.fidelity.scores import BASELINE, KINDS, LINKS, MODELS, TUNED, Cell, Kind, Setting
from lab.verdict import missed
from simulator.case import Case
from simulator.cost import Factors
from simulator.dtypes import MS_PER_NS
from simulator.plan import NO_COMM
from simulator.predict import simulate
from simulator.specs import ModelSpec, Workload

Plans = dict[str, Chosen]
Runs = dict[str, Measured]
BOUND: Final = "bound"  # Name of the plan without communication: no plan can be faster


def run_setting(
    model: ModelSpec, workload: Workload, link: str, kind: Kind, *, rounds: int, samples: int
) -> Setting:
    """Run one setting. The profile is finished, and its id taken, before the first plan runs."""
    name = f"{model.name}-{workload.micro_batch_size}x{workload.seq_length}-{link}"
    file, began = str(model_file(model)), time.monotonic()
    shape: dict[str, Any] = {
        "tp": 2, "seq_length": workload.seq_length, "dtype": workload.dtype,
        "micro_batch_size": workload.micro_batch_size,
    }  # fmt: skip
    request = ProfileRequest(name=name, for_model=file, emulate_link=link, samples=samples, **shape)
    profiled = profile(request)
    profile_s = time.monotonic() - began
    mode = kind.sequence_parallel
    fields = WorkloadFields(model=file, profile=name, sequence_parallel=mode, **shape)
    case = resolve(fields)
    chosen = plans_of(case, fields, kind)
    bits_per_s = round(parse_quantity("link", link, ("bytes/s",)).value * 8)
    spec = LaunchSpec(tp=2, emulate_link_bits_per_s=bits_per_s)
    launches = [_run(case, chosen, rounds, spec) for _ in range(2)]
    single_rank = replace(spec, single_rank=True, emulate_link_bits_per_s=None)
    emulated = run_emulated(case, chosen, rounds, single_rank)
    return setting_of(
        case, as_emulated(case, single_rank), chosen, launches, emulated,
        link=link, profile_id=profiled.profile.content_id, profile_s=profile_s,
    )  # fmt: skip


def model_file(model: ModelSpec) -> Path:
    """Write the model to a file in the user's folder, as a user would, and return its path."""
    path = user_profiles_dir().parent / f"{model.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, dump_model(model))
    return path


def plans_of(case: Case, fields: WorkloadFields, kind: Kind) -> dict[str, Chosen]:
    """Return the plans of the report, the tuned plan and the plan without communication by name."""
    asked = {name: getattr(fields, name) for name in WorkloadFields.model_fields}
    tuned = tune(TuneRequest(**asked, search="bayes")).best.plan_file
    bound = replace(NO_COMM, sequence_parallel=bool(kind.sequence_parallel))
    named = {name: Chosen.of(case, plan) for name, plan in {**kind.plans, BOUND: bound}.items()}
    return {**named, TUNED: Chosen(plan=tuned.plan, order=tuned.order)}


def _run(case: Case, chosen: Plans, rounds: int, spec: LaunchSpec, paces: Any = None) -> Runs:
    plans = [(one.plan, one.order) for one in chosen.values()]
    job = case.model, case.workload, case.cluster
    measured = plan_runs.Runs(*job, plans, rounds, paces=paces).run(spec)
    return dict(zip(chosen, measured, strict=True))


def run_emulated(case: Case, chosen: Plans, rounds: int, spec: LaunchSpec) -> Runs:
    """Run the plans on one rank, with collectives that take the profile's durations."""
    timelines = [simulate(case, one.plan, one.order) for one in chosen.values()]
    paces = plan_paces(case.cost, [one.plan for one in chosen.values()], timelines)
    return _run(case, chosen, rounds, spec, paces)


def setting_of(
    case: Case, emulated_case: Case, chosen: Plans, launches: Sequence[Runs], emulated: Runs,
    *, link: str, profile_id: str, profile_s: float,
) -> Setting:  # fmt: skip
    """Return measurements beside their predictions. ``emulated_case`` predicts ``emulated``."""
    bound_ms = statistics.median(launches[0][BOUND].makespans_ns) * MS_PER_NS
    speed = _predicted_ms(case, chosen[BOUND]) / bound_ms
    running = {name: one for name, one in chosen.items() if name != BOUND}
    machines = machines_of(case, running)
    steady_case = replace(case, factors=Factors(gpu_flops=speed, memory_bandwidth=speed))
    cells = []
    for name, one in running.items():
        both = [launch[name] for launch in launches]
        parts = [found.timeline.breakdown for found in both if found.timeline]
        predicted = simulate(case, one.plan, one.order).breakdown
        first, second, alone = (
            tuple(round(makespan_ns * MS_PER_NS, 3) for makespan_ns in measured.makespans_ns)
            for measured in (*both, emulated[name])
        )
        drawn = middle_of(machines.times_ns(BASELINE) / machines.times_ns(name))
        cells.append(
            Cell(
                plan=name, label=one.plan.label, predicted_ms=predicted.makespan_ns * MS_PER_NS,
                steady_ms=_predicted_ms(steady_case, one), first=first, second=second,
                emulated=alone, predicted_emulated_ms=_predicted_ms(emulated_case, one),
                exposed_ms=statistics.mean(part.exposed_comm_ns for part in parts) * MS_PER_NS,
                predicted_exposed_ms=predicted.exposed_comm_ns * MS_PER_NS,
                hidden=statistics.mean(part.hidden_comm_fraction for part in parts),
                drawn=None if one == chosen[BASELINE] else drawn,
            )
        )  # fmt: skip
    return Setting(
        model=case.model.name, link=link, profile_id=profile_id, profile_s=profile_s,
        speed=speed, cells=tuple(cells),
    )  # fmt: skip


def _predicted_ms(case: Case, one: Chosen) -> float:
    return simulate(case, one.plan, one.order).makespan_ns * MS_PER_NS


def main(argv: Sequence[str] | None = None) -> int:
    """Run every setting, write page and numbers after each, then print the report of all."""
    options = _parser().parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["DOMINO_TUNE_HOME"] = str(options.folder.resolve())
    kind, machine = KINDS[options.kind], f"{cpu_name()}, {os.cpu_count()} cores"
    often = {"rounds": options.rounds, "samples": options.samples}
    settings: list[Setting] = []
    for name, link in product(options.models or kind.models, options.links):
        model, workload = _model(name, options)
        print_line(f"{model.name} on {link} ...", sys.stderr)
        settings.append(run_setting(model, workload, link, kind, **often))
        write_whole(options.folder / "page.md", scores.markdown(settings, machine, kind.title))
        write_whole(options.folder / "numbers.json", scores.to_json(settings, machine))
    for table in scores.tables(settings, kind.title):
        print_table(table)
    return int(missed(scores.checks(settings)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/fidelity", description=__doc__)
    add, out = parser.add_argument, "out/fidelity"
    add("--kind", choices=list(KINDS), default="plain",
        help="plans without sequence parallelism, with it, or slices of single sequences "
             "(default: plain)")  # fmt: skip
    add("--models", nargs="+", default=None, metavar="NAME|FILE",
        help=f"models (default: {' '.join(MODELS)})")  # fmt: skip
    add("--links", nargs="+", default=list(LINKS), metavar="RATE",
        help=f"links (default: {' '.join(LINKS)})")  # fmt: skip
    for name, default, what in (
        ("--seq-length", 256, "for models that are given as files"),
        ("--micro-batch-size", 4, "for models that are given as files"),
        ("--rounds", 10, "runs of each plan in a launch"),
        ("--samples", 10, "timings of each op in a profile"),
    ):
        add(name, type=int, default=default, metavar="N", help=f"{what} (default: {default})")
    add("--folder", type=Path, default=Path(out), metavar="FOLDER",
        help=f"where profiles, page.md and numbers.json go (default: {out})")  # fmt: skip
    return parser


def _model(name: str, options: argparse.Namespace) -> tuple[ModelSpec, Workload]:
    known = KINDS[options.kind].models
    if name in known:
        return known[name]
    seq, batch = options.seq_length, options.micro_batch_size
    return load_model(name).spec, Workload(seq_length=seq, micro_batch_size=batch, dtype="fp32")


if __name__ == "__main__":
    sys.exit(main())
