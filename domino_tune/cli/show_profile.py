"""Print the progress of ``profile``, and how to continue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from domino_tune.base.progress import Progress
from domino_tune.base.tables import print_line
from domino_tune.cli import show


@contextmanager
def progress() -> Iterator[Progress]:
    """Show a status line if stderr is a terminal, else print plain lines."""
    if sys.stderr.isatty():
        with show.still_progress() as update:
            yield update
    else:
        yield lambda message: print_line(message, sys.stderr)


def interrupted(path: Path, resume: str) -> None:
    """Print where the measurements are, and how to continue."""
    state = f"The measurements are in {path}." if path.exists() else "Nothing was measured yet."
    print_line(f"{state} To go on: {resume}", sys.stderr)
