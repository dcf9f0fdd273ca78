"""Rows of one signature in one import: samples of one row, or a contradiction to warn about."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from simulator.lookup.gemm import GemmRow
from simulator.profile import gemm_key

NOISE: Final = 0.05
"""How far timings of one signature may differ and still count as samples of one time."""
SAMPLES: Final = 3
"""With this many timings, take their median; of two that contradict each other, keep the
later one.
"""
Same = Sequence[tuple[str, Any]]
"""Rows of one signature, each preceded by its place in the file."""


def merged(placed: Same) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return rows sorted by key, one for each, and warnings that name contradicting timings. Rows
    of one key become one: median time, half the range as spread.
    """
    by_key: dict[Any, list[tuple[str, Any]]] = {}
    for at, row in placed:
        by_key.setdefault(key_of(row), []).append((at, row))
    ordered = [by_key[key] for key in sorted(by_key)]
    return tuple(_one_row(same) for same in ordered), _contradictions(ordered)


def _one_row(same: Same) -> Any:
    rows = [row for _, row in same]
    if len(rows) < SAMPLES and _contradict(same):
        return rows[-1]
    if len(rows) == 1:
        return rows[0]
    times = [row.median_us for row in rows]
    return changed_row(
        rows[0],
        median_us=statistics.median(times),
        spread_us=(max(times) - min(times)) / 2,
        samples=sum(row.samples for row in rows),
    )


def _contradict(same: Same) -> bool:
    return _excess(same) > NOISE


def _excess(same: Same) -> float:
    """Return by how much the longest time exceeds the shortest, as a share of the shortest."""
    times = [float(row.median_us) for _, row in same]
    return max(times) / min(times) - 1


def _contradictions(all_rows: Sequence[Same]) -> tuple[str, ...]:
    found = [same for same in all_rows if len(same) > 1 and _contradict(same)]
    pairs = [same for same in found if len(same) < SAMPLES]
    others = [same for same in found if len(same) >= SAMPLES]
    told = []
    if pairs:
        (first, before), (last, kept) = max(pairs, key=_excess)
        told.append(
            f"{_rows(pairs)} by more than {NOISE:.0%}: the later one is kept, so {last} with "
            f"{kept.median_us:,.6g} us, not {first} with {before.median_us:,.6g} us."
        )
    if others:
        most_apart = max(others, key=_excess)
        worst = sorted(most_apart, key=lambda one: float(one[1].median_us))
        (least_at, least), (most_at, most) = worst[0], worst[-1]
        told.append(
            f"{_rows(others)} by more than {NOISE:.0%}: their median is kept, so "
            f"{_one_row(worst).median_us:,.6g} us of {len(worst)} timings from "
            f"{least.median_us:,.6g} us ({least_at}) to {most.median_us:,.6g} us ({most_at})."
        )
    return tuple(told)


def _rows(found: Sequence[Same]) -> str:
    many = len(found) > 1
    return (
        f"{len(found):,} signatures were timed more than once, with times that differ" if many
        else "One signature was timed more than once, with times that differ"
    )  # fmt: skip


def key_of(row: Any) -> Any:
    """Return what identifies a row: its signature."""
    return gemm_key(row) if isinstance(row, GemmRow) else row.key


def changed_row(row: Any, **changes: Any) -> Any:
    """Return the row with other values of some fields."""
    return row._replace(**changes) if isinstance(row, GemmRow) else replace(row, **changes)
