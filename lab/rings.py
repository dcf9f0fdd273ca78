"""Run a ring of tests again and again, in random orders, with the cores busy if asked: what fails?

Prints a row a run. Returns 1 when a test failed in any of them.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from domino_tune.base.tables import Table, print_line, print_table
from lab.markdown import markdown_section

REPOSITORY: Final = Path(__file__).resolve().parents[1]
RINGS: Final = {
    "unit": ("tests/unit",),
    "real": ("tests/real",),
    "both": ("tests/unit", "tests/real"),
}
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
COUNTED: Final = re.compile(r"(\d+) passed")
SPIN: Final = "while True: pass"


class Ran(NamedTuple):
    """One run: its seed, how many tests passed, which failed, and its time in s."""

    seed: int
    passed: int
    failed: tuple[str, ...]
    wall_s: float
    cpu_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ring and print its table."""
    parser = argparse.ArgumentParser(prog="scripts/rings", description=__doc__)
    parser.add_argument("ring", choices=RINGS)
    parser.add_argument("--times", type=int, default=1, metavar="N", help="runs (default: 1)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="order of the first run")
    parser.add_argument("--busy", action="store_true", help="keep every core busy with a loop")
    parser.add_argument("--processes", type=int, default=3, metavar="N", help="of pytest")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table here")
    options = parser.parse_args(argv)
    ran = []
    with busy_cores(options.busy):
        for seed in range(options.seed, options.seed + options.times):
            ran.append(run(RINGS[options.ring], seed, options.processes))
            print_line(" ".join(row_of(ran[-1])), sys.stderr)
    table = table_of(options.ring, ran, busy=options.busy)
    print_table(table)
    if options.out:
        options.out.write_text(markdown_section(table), "utf-8")
    return int(any(one.failed or not one.passed for one in ran))


@contextmanager
def busy_cores(busy: bool) -> Iterator[None]:
    """Keep each core busy with a process that computes until the block ends."""
    count = len(os.sched_getaffinity(0)) if busy else 0
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def run(folders: Sequence[str], seed: int, processes: int) -> Ran:
    """Run the tests of ``folders`` once, in the order of ``seed``."""
    began_s, began_cpu_s = time.monotonic(), _children_cpu_s()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", str(processes), "--dist", "worksteal",
         "--tb=short", f"--shuffle={seed}", *folders],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    failed = tuple(FAILED.findall(done.stdout))
    if done.returncode:
        print_line(done.stdout[-20_000:], sys.stderr)
    counted = COUNTED.findall(done.stdout)
    return Ran(
        seed, int(counted[-1]) if counted else 0, failed, time.monotonic() - began_s,
        _children_cpu_s() - began_cpu_s,
    )  # fmt: skip


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table_of(ring: str, ran: Sequence[Ran], *, busy: bool) -> Table:
    """Return a row a run."""
    return Table(
        title=f"Tests of the ring {ring}, {len(ran)} times in random order"
        + (", both cores busy with something else" if busy else ""),
        columns=("seed", ">passed", ">wall, s", ">CPU, s", "failed"),
        rows=[row_of(one) for one in ran],
    )


def row_of(one: Ran) -> tuple[str, ...]:
    """Return the cells of a run."""
    failed = ", ".join(one.failed) or "none"
    return str(one.seed), f"{one.passed:,}", f"{one.wall_s:.0f}", f"{one.cpu_s:.0f}", failed


if __name__ == "__main__":
    sys.exit(main())
