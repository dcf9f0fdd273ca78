"""An importer's arguments besides the data, and its result."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from domino_tune.measure.importers.preset_shapes import unknown_shapes
from domino_tune.measure.importers.rates import UNITS, check_rates, lifted_rows
from domino_tune.measure.importers.repeats import changed_row, merged
from domino_tune.store.files import MAX_TEXT_BYTES
from simulator.errors import InputError
from simulator.profile import Machine

SectionName = Literal["gemm", "attention", "pointwise", "collectives"]
Placed = Sequence[tuple[str, Any]]
"""Rows, each preceded by its place in the file, such as ``line 3``."""
Found = tuple[Placed, str]
"""Rows, and a note that names what was left out."""
"""No table of timings is larger; an unpacked zip bomb is."""
MAX_LINES: Final = 1_000_000
MAX_LINE: Final = 1 << 16
"""Most characters of a line."""
MOST_COUNT: Final = 10**15
"""The largest whole number in a table, as in a profile."""
_LINE: Final = re.compile(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)")


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Facts that a table may lack; None leaves them to the table.

    ``unit``: of the column ``us``, None for microseconds. ``machine``: the machine that was timed;
    rows faster than it can be are refused.
    """

    op: str | None = None
    nodes: int | None = None
    per_node: int | None = None
    ctas: int = 0
    dtype: str = "bf16"
    unit: str | None = None
    machine: Machine | None = None


NO_HINTS = Hints()


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Rows of one section, sorted, one for each signature.

    ``note`` names what was left out; ``warnings`` say why look-ups may not profit.
    """

    section: SectionName
    rows: tuple[Any, ...]
    note: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Importer:
    """Reader of one format, called with the file's bytes (gzip is unpacked first).

    ``read`` returns the rows and a note. ``columns``: those that a CSV must have. ``series``: a
    name for further columns; the CSV must have at least one. Times in a column ``us`` may have
    another unit. Raise InputError with the place and the reason.
    """

    section: SectionName
    read: Callable[[bytes, Hints], Found]
    columns: tuple[str, ...] = ()
    series: str = ""
    about: str

    @property
    def description(self) -> str:
        """What the format is, and its columns."""
        if not self.columns:
            return self.about
        series = f", and at least one of {self.series}" if self.series else ""
        return f"{self.about} Columns: {', '.join(self.columns)}{series}."

    def __call__(self, data: bytes, hints: Hints = NO_HINTS) -> Imported:
        """Return the rows of the file, each signature once, compared with the hints' machine."""
        takes_unit = "us" in self.columns
        if hints.unit is not None and not takes_unit:
            raise InputError("The times of this format have a fixed unit; leave --unit out.")
        placed, note = self.read(data, hints)
        if not placed:
            raise InputError("The table has no rows to import" + (f" ({note})." if note else "."))
        factor = UNITS[hints.unit or "us"]
        if factor != 1:
            placed = [
                (at, changed_row(row, median_us=factor * row.median_us)) for at, row in placed
            ]
        warnings = unknown_shapes([row for _, row in placed])
        if hints.machine is not None:
            warnings += check_rates(placed, hints.machine, hints.unit, takes_unit=takes_unit)
        rows, twice = merged(placed)
        warnings += twice
        if hints.machine is not None:
            warnings += lifted_rows(rows, hints.machine)
        return Imported(section=self.section, rows=rows, note=note, warnings=warnings)


def text_of(data: bytes) -> str:
    """Return the file as text, with gzip unpacked; raise InputError if it is neither text
    nor gzip.
    """
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MAX_TEXT_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"The file is not complete gzip: {error}.") from None
    if len(data) > MAX_TEXT_BYTES:
        raise InputError(
            f"The unpacked file has more than {MAX_TEXT_BYTES >> 20} MiB; no table of timings has. "
            "Split it."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"The file is not UTF-8 text (byte {error.start}); save the table as CSV in UTF-8."
        ) from None
    if "\0" in text:
        raise InputError("The file holds NUL bytes, so it is no text; save it as CSV in UTF-8.")
    return text


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number; raise InputError if there are too many or one is
    too long.
    """
    for number, match in enumerate(_LINE.finditer(text), 1):
        if number > MAX_LINES + 1:  # an empty line follows the last line break
            raise InputError(f"The table has more than {MAX_LINES:,} lines; split it.")
        if len(match[1]) > MAX_LINE:
            raise InputError(
                f"line {number} has more than {MAX_LINE:,} characters; no line of a table has. "
                "Are line breaks missing?"
            )
        yield number, match[1]


def brief(text: str) -> str:
    """Return a value of the file for a message: quoted, and cut if it is long."""
    return repr(text if len(text) <= 40 else text[:40] + "…")
