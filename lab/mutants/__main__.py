"""Put random faults into the code, run its tests, and print which faults no test notices.

Faults are put into copies in a temporary folder. Exit with 1 when too few are noticed, or too many
are called equivalent.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal, NamedTuple

from domino_tune.base.tables import Table, print_line, print_table
from lab.mutants.equivalents import EQUIVALENT
from lab.mutants.faults import MUTATED, Fault, sample, sources
from lab.mutants.trees import Tree, folder_of
from lab.verdict import Check, at_most, check_table

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
LEAST_NOTICED: Final = 0.85
MOST_EQUIVALENT: Final = 0.05
PATIENCE: Final = 3
"""Tests that compute this many times as long as without a fault have noticed it."""

Fate = Literal["noticed", "survived", "equivalent"]


class Outcome(NamedTuple):
    """What became of a fault; ``old`` and ``new`` are the line without and with it."""

    fault: Fault
    fate: Fate
    old: str
    new: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests with each fault, and print tables. Return 1 when a limit is missed."""
    parser = _parser()
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [Tree(REPOSITORY, Path(folder) / str(job)) for job in range(options.jobs)]
        texts = {
            path: text
            for path, text in sources(trees[0].root).items()
            if any(Path(path).is_relative_to(part) for part in options.paths)
        }
        faults = sample(texts, options.count, options.seed)
        if not faults:
            parser.error(f"no fault fits into {options.paths}; name code of {' or '.join(MUTATED)}")
        outcomes = played(trees, faults, texts)
    print_table(listed(outcomes))
    table, is_met = judged(outcomes, options.seed)
    print_table(table)
    return int(not is_met)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", default=MUTATED, metavar="PATH",
                        help=f"where faults are put (default: {' '.join(MUTATED)})")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="which faults are chosen (default: 0)")  # fmt: skip
    parser.add_argument("--count", type=int, default=100, metavar="N",
                        help="number of faults (default: 100)")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, metavar="N",
                        help="faults that are tried at once (default: 2)")  # fmt: skip
    return parser


def played(trees: Sequence[Tree], faults: Sequence[Fault], texts: dict[str, str]) -> list[Outcome]:
    """Return what became of ``faults``, in their order. Each tree tries one after the other."""
    free: SimpleQueue[Tree] = SimpleQueue()

    def play(fault: Fault) -> Outcome:
        old, new = fault.change(texts[fault.path])
        if (fault.path, old, new) in EQUIVALENT:
            return Outcome(fault, "equivalent", old, new)
        tree = free.get()
        try:
            limit_s = limits_s[folder_of(fault.path)]
            fate: Fate = "noticed" if tree.is_noticed(fault, limit_s) else "survived"
        finally:
            free.put(tree)
        print_line(f"{fate} {fault.path}:{fault.line}: {old} -> {new}", sys.stderr)
        return Outcome(fault, fate, old, new)

    folders = sorted({folder_of(fault.path) for fault in faults})
    limits_s = {each: math.ceil(PATIENCE * trees[0].passing_s(each)) for each in folders}
    for tree in trees:
        free.put(tree)
    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(play, faults))


def listed(outcomes: Sequence[Outcome]) -> Table:
    """Return the faults that no test noticed, with the reasons of those that none can notice."""
    return Table(
        title="Faults that no test noticed",
        columns=("where", "without", "with", "fate"),
        rows=[
            (f"{fault.path}:{fault.line}", old, new,
             f"equivalent: {EQUIVALENT[fault.path, old, new]}" if fate == "equivalent" else fate)
            for fault, fate, old, new in outcomes
            if fate != "noticed"
        ],
    )  # fmt: skip


def judged(outcomes: Sequence[Outcome], seed: int) -> tuple[Table, bool]:
    """Return the counts beside their limits, and whether both limits are met."""
    fates = Counter(outcome.fate for outcome in outcomes)
    total = len(outcomes)
    checks = [
        Check(
            what="noticed",
            target=f"≥ {LEAST_NOTICED:.0%}",
            measured=f"{fates['noticed'] / total:.0%}",
            ok=fates["noticed"] >= LEAST_NOTICED * total,
        ),
        at_most("equivalent", MOST_EQUIVALENT, fates["equivalent"] / total, digits=0),
    ]
    notes = [f"{fates[fate]} {fate}" for fate in ("noticed", "survived", "equivalent")]
    table = check_table(f"{total} faults, seed {seed}", checks, notes)
    return table, all(check.ok for check in checks)


if __name__ == "__main__":
    sys.exit(main())
