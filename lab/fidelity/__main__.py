"""Profile, tune, run the plans, and compare with predictions. Exit with 1 when a target is missed.

Results that are in the folder already are not measured again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from domino_tune.base.tables import print_table
from domino_tune.measure.machine import cpu_name
from domino_tune.store.files import write_whole
from domino_tune.store.models import load_model
from lab.fidelity.page import checks, markdown, tables, to_json
from lab.fidelity.records import kept, setting_from
from lab.fidelity.scores import Setting
from lab.fidelity.settings import KINDS, LINKS, MODELS
from lab.verdict import missed
from simulator.specs import ModelSpec, Workload


def main(argv: Sequence[str] | None = None) -> int:
    """Run every setting that the folder does not hold, then print the report of all."""
    options = _parser().parse_args(argv)
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["DOMINO_TUNE_HOME"] = str(folder.resolve())
    settings = []
    for name in options.models or KINDS[options.kind].models:
        for link in options.links:
            settings.append(_setting(folder, name, link, options))
            _write(settings, options)
    for table in tables(settings, KINDS[options.kind].title):
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
    parser.add_argument("--folder", default="out/fidelity", metavar="FOLDER",
                        help="folder of results (default: out/fidelity)")  # fmt: skip
    parser.add_argument("--page", default=None, metavar="FILE", help="write the page to FILE")
    parser.add_argument("--json", default=None, metavar="FILE", help="write the numbers to FILE")
    return parser


def _setting(folder: Path, name: str, link: str, options: argparse.Namespace) -> Setting:
    """Return the setting from its file in ``folder``, or run it and write that file."""
    from lab.fidelity.loop import run_setting

    model, workload = _model(name, options)

    measure = partial(
        run_setting, model, workload, link, KINDS[options.kind], rounds=options.rounds,
        samples=options.samples,
    )  # fmt: skip
    kind = "" if options.kind == "plain" else f"{options.kind}-"
    inputs = {
        "model": asdict(model), "workload": asdict(workload), "rounds": options.rounds,
        "samples": options.samples,
    }  # fmt: skip
    path = folder / f"setting-{kind}{model.name}-{link}.json"
    return setting_from(kept(path, inputs, measure, f"{model.name} on {link}"))


def _model(name: str, options: argparse.Namespace) -> tuple[ModelSpec, Workload]:
    known = KINDS[options.kind].models
    if name in known:
        return known[name]
    workload = Workload(
        seq_length=options.seq_length, micro_batch_size=options.micro_batch_size, dtype="fp32"
    )
    return load_model(name).spec, workload


def _write(settings: Sequence[Setting], options: argparse.Namespace) -> None:
    machine = f"{cpu_name()}, {os.cpu_count()} cores"
    if options.page:
        write_whole(options.page, markdown(settings, machine, KINDS[options.kind].title))
    if options.json:
        write_whole(options.json, to_json(settings, machine))


if __name__ == "__main__":
    sys.exit(main())
