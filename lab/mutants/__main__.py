"""Put random faults into the code, run its tests, and print which faults no test notices. Faults
are put into copies in a temporary folder. Exit with 1 when too few are noticed, or too many are
called equivalent."""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from domino_tune.base.tables import Table, print_line, print_table
from lab.mutants.covered import Covering
from lab.mutants.faults import (
    AREAS,
    EQUIVALENT,
    MUTATED,
    Fault,
    area_of,
    sample,
    sources,
    traced_tests,
)
from lab.mutants.trees import Fate, Tree
from lab.verdict import at_least, at_most, check_table, markdown_section, missed, table

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
FATES: Final[tuple[Fate, ...]] = ("noticed", "survived", "unjudged", "equivalent")


class Outcome(NamedTuple):
    """What became of a fault; ``old`` and ``new`` are the line without and with it."""

    fault: Fault
    fate: Fate
    old: str
    new: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests with each fault, and print tables. Return 1 when a limit is missed."""
    # A shell that starts this in the background ignores Ctrl-C, which tests send to processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = _parser()
    options = parser.parse_args(argv)
    texts = {
        path: text for path, text in sources(REPOSITORY).items()
        if any(Path(path).is_relative_to(part) for part in options.paths)
    }  # fmt: skip
    faults = sample(texts, options.count, options.seed)
    if not faults:
        parser.error(f"no fault fits into {options.paths}; name code of {' or '.join(MUTATED)}")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL may run as another user
        needed: dict[str, float] = {}
        trees = [Tree(REPOSITORY, Path(folder) / str(job), needed) for job in range(options.jobs)]
        trace(trees, options.trace or Path(folder) / "trace")
        outcomes = played(trees, faults, texts, options.cpu_s, options.minutes)
        broken = trees[0].broken()
    checks, is_met = judged(outcomes, options.seed, broken)
    tables = (listed(outcomes), by_area(outcomes, options.cpu_s), checks)
    for each in tables:
        print_table(each)
    if options.out:
        options.out.write_text("\n".join(map(markdown_section, tables)), "utf-8")
    return int(not is_met)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    add, all_places = parser.add_argument, " ".join(MUTATED)
    add("paths", nargs="*", default=MUTATED, metavar="PATH",
        help=f"where faults are put (default: {all_places})")  # fmt: skip
    for name, default, what in (
        ("--seed", 0, "which faults are chosen"), ("--jobs", 2, "faults tried at once"),
        ("--count", 100, "number of faults, the same for each area"),
        ("--cpu-s", 300.0, "most CPU time of the tests of one fault"),
        ("--minutes", math.inf, "begin no fault after this time"),
    ):  # fmt: skip
        add(name, type=type(default), default=default, metavar="N", help=f"{what} (%(default)s)")
    add("--trace", type=Path, metavar="FOLDER",
        help="keep here which tests run which lines; what is here is taken as it is")  # fmt: skip
    add("--out", type=Path, metavar="FILE", help="write the tables to this file as Markdown, too")
    return parser


def trace(trees: list[Tree], into: Path) -> None:
    """Let trees know which tests run which lines: where ``into`` does not tell, each traces its
    share."""
    if not into.exists():
        files = traced_tests(trees[0].root)
        part = into.with_name(f"{into.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        print_line(f"Tracing the tests of {len(files)} files ...", sys.stderr)
        with ThreadPoolExecutor(len(trees)) as pool:
            shares = [files[number :: len(trees)] for number in range(len(trees))]
            places = [part / str(number) for number in range(len(trees))]
            list(pool.map(lambda tree, *share: tree.trace(*share), trees, shares, places))
        part.rename(into)
    covering = Covering.of(sorted(into.iterdir()))
    for tree in trees:
        tree.covering = covering


def played(
    trees: list[Tree], faults: list[Fault], texts: dict[str, str], cpu_s: float, minutes: float
) -> list[Outcome]:  # fmt: skip
    """Return what became of ``faults``, in order, of those whose turn came within ``minutes``."""
    free: SimpleQueue[Tree] = SimpleQueue()
    numbers = count(1)
    end_s = time.monotonic() + 60 * minutes

    def play(fault: Fault) -> Outcome | None:
        old, new = fault.change(texts[fault.path])
        fate: Fate = "equivalent"
        test = ""
        if (fault.path, old, new) not in EQUIVALENT:
            tree = free.get()
            try:
                if time.monotonic() > end_s:
                    return None
                fate, test = tree.judge(fault, cpu_s)
            finally:
                free.put(tree)
        said = f"{next(numbers)}/{len(faults)} {fate} {fault.path}:{fault.line}: {old} -> {new}"
        print_line(f"{said} ({test})" if test else said, sys.stderr)
        return Outcome(fault, fate, old, new)

    for tree in trees:
        free.put(tree)
    with ThreadPoolExecutor(len(trees)) as pool:
        return [outcome for outcome in pool.map(play, faults) if outcome]


def listed(outcomes: Sequence[Outcome]) -> Table:
    """Return the faults that no test noticed, with the reasons of those that none can notice."""
    unseen = [one for one in outcomes if one.fate != "noticed"]
    reasons = {one: EQUIVALENT.get((one.fault.path, one.old, one.new)) for one in unseen}
    lines = [
        (f"{one.fault.path}:{one.fault.line}", one.old, one.new,
         f"equivalent: {reasons[one]}" if reasons[one] else one.fate) for one in unseen
    ]  # fmt: skip
    return table("Faults that no test noticed", "where|without|with|fate", lines)


def by_area(outcomes: Sequence[Outcome], cpu_s: float) -> Table:
    """Return the counts of each area."""
    counts = Counter((area_of(outcome.fault.path), outcome.fate) for outcome in outcomes)
    rows = []
    for area in AREAS:
        found = [counts[area, fate] for fate in FATES]
        if any(found):
            rows.append((area, *found, f"{found[0] / sum(found):.0%}"))
    return table(
        "Faults by area", f"area|>{'|>'.join(FATES)}|>noticed, of all", rows,
        "Areas get equal shares of the faults. A fault is unjudged when its area's tests, the "
        f"nearest first, had not all run after {cpu_s:g} s of CPU time and none failed.",
    )  # fmt: skip


def judged(outcomes: Sequence[Outcome], seed: int, broken: Sequence[str]) -> tuple[Table, bool]:
    """Return the counts beside their limits, and whether all limits are met."""
    fates, total = Counter(outcome.fate for outcome in outcomes), len(outcomes)
    checks = [
        at_least("noticed", 0.85, fates["noticed"] / total),
        at_most("equivalent", 0.05, fates["equivalent"] / total, digits=0),
        at_most("tests that fail without any fault", 0, len(broken), unit="tests", digits=0),
    ]
    notes = (f"{test} fails without any fault" for test in broken)
    return check_table(f"{total} faults, seed {seed}", checks, *notes), not missed(checks)


if __name__ == "__main__":
    sys.exit(main())
