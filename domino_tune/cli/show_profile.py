"""Print the result of ``profile`` as a table, and its progress while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from domino_tune.base.progress import Progress
from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.cli import show
from domino_tune.results.profile import ProfilingResult

MOST_OUTLIERS = 5


@contextmanager
def progress() -> Iterator[Progress]:
    """Show a status line where stderr is a terminal; print plain lines elsewhere."""
    if sys.stderr.isatty():
        with show.still_progress() as update:
            yield update
    else:
        yield lambda message: print_line(message, sys.stderr)


def profile(result: ProfilingResult) -> None:
    """Print the rows of each section, how many are left, and how to go on."""
    print_table(
        Table(
            title=f"{result.profile.name} ({result.profile.content_id[:19]}…) in {result.path}",
            columns=("section", ">rows", ">of this run", ">left"),
            rows=[
                (
                    item.section, "fit" if item.rows is None else str(item.rows), str(item.new),
                    "–" if item.left is None else str(item.left),
                )
                for item in result.sections
            ],
            notes=[*_notes(result)],
        )
    )  # fmt: skip
    show.warn(_outlier_lines(result))


def interrupted(path: Path, resume: str) -> None:
    """Print where the measurements are, and how to go on."""
    state = f"The measurements are in {path}." if path.exists() else "Nothing was measured yet."
    print_line(f"{state} To go on: {resume}", sys.stderr)


def _notes(result: ProfilingResult) -> Iterator[str]:
    yield from result.notes
    if result.complete and result.seconds == 0:
        yield "Complete: nothing was left to measure; no ranks were started."
    elif result.complete:
        yield f"Complete, in {result.seconds:.0f} s."
    else:
        yield (
            f"Not complete: {result.left} measurements are left after {result.seconds:.0f} s. "
            f"To go on: {result.resume}"
        )


def _outlier_lines(result: ProfilingResult) -> Iterator[str]:
    for outlier in result.outliers[:MOST_OUTLIERS]:
        yield (
            f"{outlier.section} {outlier.op}: {outlier.median_us:,.0f} us ± {outlier.spread:.0%}; "
            "something disturbed the machine, or its speed is not steady."
        )
    more = len(result.outliers) - MOST_OUTLIERS
    if more > 0:
        yield f"{more} more rows vary as much; --json lists them."
