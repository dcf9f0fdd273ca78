"""An importer's arguments besides the data, and its result."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from simulator.errors import InputError
from simulator.lookup.gemm import GemmRow
from simulator.profile import gemm_key

SectionName = Literal["gemm", "attention", "pointwise", "collectives"]
MAX_TEXT_BYTES = 256 << 20  # no table of timings is larger; a zip bomb is


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Facts that a table does not contain; None leaves them to the table."""

    op: str | None = None
    nodes: int | None = None
    per_node: int | None = None
    ctas: int = 0
    dtype: str = "bf16"


NO_HINTS = Hints()


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Rows of one section, sorted, each signature once; ``note`` names what was left out."""

    section: SectionName
    rows: tuple[Any, ...]
    note: str = ""


class Importer(Protocol):
    """Reads one format; raises InputError with the line and the reason."""

    def __call__(self, data: bytes, hints: Hints = NO_HINTS) -> Imported:
        """Return the rows of the file's bytes (gzip is unpacked first)."""


def text_of(data: bytes) -> str:
    """Return the file as text, gzip unpacked; raise InputError when it is neither."""
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MAX_TEXT_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"The file is not complete gzip: {error}.") from None
    if len(data) > MAX_TEXT_BYTES:
        raise InputError(f"The unpacked file has more than {MAX_TEXT_BYTES} bytes; no table does.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"The file is not UTF-8 text: {error}.") from None


def merged(rows: Iterable[Any]) -> tuple[Any, ...]:
    """Return rows sorted by key; rows of one key become one: median time, half the range."""
    by_key: dict[Any, list[Any]] = {}
    for row in rows:
        by_key.setdefault(key_of(row), []).append(row)
    result = []
    for key in sorted(by_key):
        same = by_key[key]
        times = np.array([row.median_us for row in same])
        median = float(np.median(times))
        spread_us = float(times.max() - times.min()) / 2
        samples = sum(row.samples for row in same)
        result.append(
            same[0]
            if len(same) == 1
            else _replace(same[0], median_us=median, spread_us=spread_us, samples=samples)
        )
    return tuple(result)


def key_of(row: Any) -> Any:
    """Return what identifies a row: its signature."""
    return gemm_key(row) if isinstance(row, GemmRow) else row.key


def _replace(row: Any, **changes: Any) -> Any:
    return row._replace(**changes) if isinstance(row, GemmRow) else replace(row, **changes)
