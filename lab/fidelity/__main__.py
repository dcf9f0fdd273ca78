"""Profile, tune, run plans, and compare with predictions. Exit with 1 when a target is missed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from domino_tune.base.tables import print_line, print_table
from domino_tune.measure.machine import cpu_name
from domino_tune.store.files import write_whole
from domino_tune.store.models import load_model
from lab.fidelity.page import checks, markdown, tables, to_json
from lab.fidelity.scores import Setting
from lab.fidelity.settings import KINDS, LINKS, MODELS
from lab.verdict import missed
from simulator.specs import ModelSpec, Workload


def main(argv: Sequence[str] | None = None) -> int:
    """Run every setting, write page and numbers after each, then print the report of all."""
    from lab.fidelity.loop import run_setting

    options = _parser().parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["DOMINO_TUNE_HOME"] = str(options.folder.resolve())
    kind, machine = KINDS[options.kind], f"{cpu_name()}, {os.cpu_count()} cores"
    settings: list[Setting] = []
    for name in options.models or kind.models:
        for link in options.links:
            model, workload = _model(name, options)
            print_line(f"{model.name} on {link} ...", sys.stderr)
            settings.append(
                run_setting(
                    model, workload, link, kind, rounds=options.rounds, samples=options.samples
                )
            )
            write_whole(options.folder / "page.md", markdown(settings, machine, kind.title))
            write_whole(options.folder / "numbers.json", to_json(settings, machine))
    for table in tables(settings, kind.title):
        print_table(table)
    return int(missed(checks(settings)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/fidelity", description=__doc__)
    parser.add_argument("--kind", choices=list(KINDS), default="plain",
                        help="plans without sequence parallelism, with it, or slices of single "
                             "sequences (default: plain)")  # fmt: skip
    parser.add_argument("--models", nargs="+", default=None, metavar="NAME|FILE",
                        help=f"models (default: {' '.join(MODELS)})")  # fmt: skip
    parser.add_argument("--links", nargs="+", default=list(LINKS), metavar="RATE",
                        help=f"links (default: {' '.join(LINKS)})")  # fmt: skip
    parser.add_argument("--seq-length", type=int, default=256, metavar="N",
                        help="for models that are given as files (default: 256)")  # fmt: skip
    parser.add_argument("--micro-batch-size", type=int, default=4, metavar="N",
                        help="for models that are given as files (default: 4)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=10, metavar="N",
                        help="runs of each plan in a launch (default: 10)")  # fmt: skip
    parser.add_argument("--samples", type=int, default=10, metavar="N",
                        help="timings of each op in a profile (default: 10)")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=Path("out/fidelity"), metavar="FOLDER",
                        help="where profiles, page.md and numbers.json go "
                             "(default: out/fidelity)")  # fmt: skip
    return parser


def _model(name: str, options: argparse.Namespace) -> tuple[ModelSpec, Workload]:
    known = KINDS[options.kind].models
    if name in known:
        return known[name]
    workload = Workload(
        seq_length=options.seq_length, micro_batch_size=options.micro_batch_size, dtype="fp32"
    )
    return load_model(name).spec, workload


if __name__ == "__main__":
    sys.exit(main())
