"""Laws of multimem collectives on eight H100s: all-reduce by CTAs, others at their best CTAs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from domino_tune.measure.importers.tables import Line, number, records
from lab.fits.collectives import fit_collectives
from simulator.lookup.collectives import CollectiveFit, CollectiveRow
from simulator.ops import CollectiveKind

CTAS: Final = (2, 4, 8, 16, 32)
RANKS: Final = 8
BEST: Final[tuple[tuple[CollectiveKind, str], ...]] = (
    ("multimem_all_reduce", "multimem_ar_us"),
    ("multimem_reduce_scatter", "multimem_rs_us"),
    ("multimem_all_gather", "multimem_ag_us"),
)
"""Collective -> its column in figure_5.csv."""
ELEMENT_BYTES: Final = 2
SIZE: Final = ("BL", "hidden_size")


def multimem_collectives(tables: Path) -> tuple[CollectiveFit, ...]:
    """Return the laws; CTAs 0 are the best ones of each size, which the table's authors chose."""
    return fit_collectives([*_by_ctas(tables / "figure_7.csv"), *_best(tables / "figure_5.csv")])


def _by_ctas(table: Path) -> Iterator[CollectiveRow]:
    columns = {ctas: f"multimem_ar_us_ctas_{ctas}" for ctas in CTAS}
    for line, row in records(table.read_bytes(), (*SIZE, *columns.values())):
        for ctas, column in columns.items():
            us = number(line, row, column)
            yield _row("multimem_all_reduce", ctas, _bytes(line, row), us)


def _best(table: Path) -> Iterator[CollectiveRow]:
    for line, row in records(table.read_bytes(), (*SIZE, *(column for _, column in BEST))):
        for op, column in BEST:
            yield _row(op, 0, _bytes(line, row), number(line, row, column))


def _bytes(line: int, row: Line) -> int:
    tokens, hidden = (number(line, row, column) for column in SIZE)
    return round(tokens * hidden) * ELEMENT_BYTES


def _row(op: CollectiveKind, ctas: int, size: int, us: float) -> CollectiveRow:
    return CollectiveRow(op=op, nodes=1, per_node=RANKS, ctas=ctas, bytes=size, median_us=us)
