"""Tables of measured runs: one row per job, whose columns are options of simulate."""

from __future__ import annotations

import csv
import io
import math
from typing import Final, NamedTuple

from simulator.errors import InputError

MEASURED: Final = "measured_ms"
ROUNDING: Final = "rounding_ms"
NOTE: Final = "note"
LONGEST_NOTE: Final = 4_000
LONGEST_LABEL: Final = 256
"""Most characters of a note."""
LABEL: Final = "label"
MOST_RUNS: Final = 10_000
LEAST_MS: Final = 1e-3
MOST_MS: Final = 1e9


class RunRow(NamedTuple):
    """A run: a name for people, its options as texts, and the median iteration in ms, which was
    printed rounded, to within ``rounding_ms``. ``note``: what was ignored."""

    label: str
    options: dict[str, str]
    measured_ms: float
    rounding_ms: float = 0.0
    note: str = ""


def read_runs(text: str, source: str) -> list[RunRow]:
    """Return the rows of a CSV table; lines that begin with ``#`` are remarks.

    Column ``label`` names the run, ``rounding_ms`` is the most by which its time was rounded,
    ``note`` is repeated in the answer. Raise InputError for a table without ``measured_ms``, and
    for a time that no iteration can take.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        return _rows(csv.DictReader(io.StringIO("\n".join(lines)), skipinitialspace=True), source)
    except csv.Error as error:
        raise InputError(f"{source} is no table of commas: {error}; correct it.") from None


def _rows(reader: csv.DictReader[str], source: str) -> list[RunRow]:
    names = [name.strip() for name in reader.fieldnames or ()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{source} has the column {', '.join(twice)} twice; keep one.")
    if MEASURED not in names:
        raise InputError(
            f"{source} has no column {MEASURED}; it has {', '.join(names) or 'none'}. Give the "
            "median time of an iteration in ms there."
        )
    found = []
    for number, row in enumerate(reader, 1):
        if None in row or None in row.values():
            raise InputError(
                f"Run {number} of {source} has another number of cells than the header has; "
                "correct it."
            )
        cells = {name.strip(): (cell or "").strip() for name, cell in row.items()}
        measured = checked_ms(cells.pop(MEASURED), f"Run {number} of {source}")
        label = cells.pop(LABEL, "")[:LONGEST_LABEL] or f"run {number}"
        rounding = cells.pop(ROUNDING, "")
        rounding_ms = _checked_rounding(rounding, measured, label) if rounding else 0.0
        note = cells.pop(NOTE, "")[:LONGEST_NOTE]
        found.append(RunRow(label, cells, measured, rounding_ms, note))
        if len(found) > MOST_RUNS:
            raise InputError(f"{source} has more than {MOST_RUNS:,} runs; give fewer.")
    return found


def checked_ms(text: str, source: str) -> float:
    """Return the time of an iteration. Raise InputError if ``text`` is not one."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not LEAST_MS <= value <= MOST_MS:  # also refuses NaN
        raise InputError(
            f"{source}: {MEASURED} must be a number from {LEAST_MS:g} to {MOST_MS:g}, got "
            f"{text[:40]!r}; correct it."
        )
    return value


def _checked_rounding(text: str, measured_ms: float, label: str) -> float:
    """Return the most by which a time was rounded. Raise InputError unless it is from 0
    to the time."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= measured_ms:
        raise InputError(
            f"{label}: {ROUNDING} must be a number from 0 to {MEASURED}, got {text[:40]!r}; "
            "correct it."
        )
    return value
