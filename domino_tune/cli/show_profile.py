"""Results of ``profile`` as a table, and its progress while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.cli import show
from domino_tune.results.profile import ProfilingResult

MOST_OUTLIERS = 5


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A status line where stderr is a terminal, plain lines elsewhere."""
    if sys.stderr.isatty():
        with show.still_progress() as update:
            yield update
    else:
        yield lambda message: print_line(message, sys.stderr)


def profile(result: ProfilingResult) -> None:
    """Rows by section, what is left, and how to go on."""
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
    """Where what was measured is kept, and how to go on."""
    kept = f"What was measured is kept in {path}." if path.exists() else "Nothing was measured yet."
    print_line(f"{kept} To go on: {resume}", sys.stderr)


def _notes(result: ProfilingResult) -> Iterator[str]:
    yield from result.notes
    if result.complete and result.seconds == 0:
        yield "Complete: nothing was left to measure, and no ranks were started."
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
            "the machine was disturbed, or is not steady."
        )
    more = len(result.outliers) - MOST_OUTLIERS
    if more > 0:
        yield f"{more} more rows spread as much; --json lists them."
