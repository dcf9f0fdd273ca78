"""Run benchmarks and print their tables: ``python -m lab.bench [NAME …]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from domino_tune.base.tables import print_line, print_table
from lab.bench import BENCHES
from lab.verdict import SkippedError, count_verdicts
from simulator.errors import unknown_name


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all. Return 2 for an unknown name; a missed target returns 0."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks (default: all)")
    parser.add_argument("--list", action="store_true", help="print their names")
    options = parser.parse_args(argv)
    if options.list:
        print("\n".join(BENCHES))
        return 0
    for name in options.names:
        if name not in BENCHES:
            print(f"error: {unknown_name('benchmark', name, BENCHES)}", file=sys.stderr)
            return 2
    met = missed = 0
    for name in options.names or BENCHES:
        ok, miss = run(name)
        met, missed = met + ok, missed + miss
    print_line(f"{met} ok, {missed} missed")
    return 0


def run(name: str) -> tuple[int, int]:
    """Print one benchmark's tables and times. Return how many targets were met and missed."""
    wall, cpu = time.perf_counter(), time.process_time()
    print_line(f"=== {name}")
    try:
        tables = BENCHES[name]()
    except SkippedError as reason:
        print_line(f"skipped: {reason}")
        return 0, 0
    for table in tables:
        print_table(table)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print_line(f"--- {name}: {wall:.1f} s wall, {cpu:.1f} s CPU")
    return count_verdicts(tables)


if __name__ == "__main__":
    sys.exit(main())
