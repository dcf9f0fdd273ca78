"""Run benchmarks and print their tables. Exit with 1 where a target is missed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Final

from domino_tune.base.tables import Table, print_line, print_table
from lab import told
from lab.verdict import SkippedError, count_verdicts
from simulator.errors import unknown_name

BENCHES: Final[dict[str, dict[str, Any]]] = told(__file__)
EXTRAS: Final = ("torch", "transformers")  # Packages that an installation without the runtime lacks
Part = Callable[[], Iterable[Table]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all. Return 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks (default: all)")
    parser.add_argument("--list", action="store_true", help="print what each of them prints")
    options = parser.parse_args(argv)
    if options.list:
        print("\n".join(f"{name:<13} {one['prints']}" for name, one in BENCHES.items()))
        return 0
    for name in options.names:
        if name not in BENCHES:
            parser.error(str(unknown_name("benchmark", name, BENCHES)))
    tables = [table for name in options.names or BENCHES for table in run(name)]
    met, missed = count_verdicts(tables)
    print_line(f"{met} ok, {missed} missed")
    return int(missed > 0)


def find(part: str) -> Part:
    """Import a part's module and return its function."""
    module, _, function = part.partition(".")
    found: Part = getattr(import_module(f"lab.bench.{module}"), function)
    return found


def run(name: str) -> list[Table]:
    """Print one benchmark's tables and times, and what was skipped. Return the tables."""
    wall, cpu, tables = time.perf_counter(), time.process_time(), list[Table]()
    print_line(f"=== {name}")
    for part in BENCHES[name]["parts"]:
        try:
            found = list(find(part)())
        except (SkippedError, ModuleNotFoundError) as reason:
            if isinstance(reason, ModuleNotFoundError) and reason.name not in EXTRAS:
                raise
            print_line(f"skipped: {part}: {reason}")
            continue
        for table in found:
            print_table(table)
        tables += found
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print_line(f"--- {name}: {wall:.1f} s wall, {cpu:.1f} s CPU")
    return tables


if __name__ == "__main__":
    sys.exit(main())
