"""Put loads on a service and print latencies, errors and memory: ``scripts/load [NAME …]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from domino_tune.base.tables import print_line, print_table
from lab.load.loads import LOADS, Duration, run
from lab.verdict import count_verdicts
from simulator.errors import unknown_name


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named loads, or all, each on a new service. Return 1 for a missed target, 2 for an
    unknown name."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    options, serve_options = _parser().parse_args(words[:at]), words[at + 1 :]
    for name in options.names:
        if name not in LOADS:
            print(f"error: {unknown_name('load', name, LOADS)}", file=sys.stderr)
            return 2
    duration = Duration(each_s=60.0, mixed_s=60.0 * options.minutes)
    if options.short:
        duration = Duration(each_s=3.0, mixed_s=20.0)
    tables = []
    for name in options.names or LOADS:
        with tempfile.TemporaryDirectory(prefix="domino_tune-load-") as folder:
            tables.append(run(name, Path(folder), duration, *serve_options))
        print_table(tables[-1])
    met, missed = count_verdicts(tables)
    print_line(f"{met} ok, {missed} missed")
    return int(missed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/load", description=__doc__,
        epilog="Arguments after -- go to `serve`: scripts/load mixed -- --workers 2",
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help=f"loads (default: all: {', '.join(LOADS)})")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N",
                        help="duration of the mixed load (default: 10)")  # fmt: skip
    parser.add_argument("--short", action="store_true",
                        help="run each load for some seconds, to see whether it works")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
