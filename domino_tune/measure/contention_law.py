"""Build the contention section from measured slowdowns: by size on CPUs, by CTA count on GPUs.

A row says how much each family of compute slows down while collectives of one operation, size and
CTA count run without a pause, and how much these slow down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any, Final

from simulator.contention import (
    ComputeContention,
    ContentionFit,
    SizeContention,
    Slowdown,
    compute_slowdown,
)

DEFAULT_CTAS: Final = 16
"""Assumed for NCCL's own choice if nothing was measured with it."""
MOST_CTAS: Final = 64
ASSUMED_ERROR: Final = 0.25
"""Expected error of a slowdown that was not measured."""
SHARED_LINKS: Final = Slowdown(factor=2.0, kind="assumed", error=ASSUMED_ERROR)
"""Two collectives on the same links share them evenly: their rates add up to the links' rate."""
OTHER_LINKS: Final = Slowdown(factor=1.0, kind="assumed", error=ASSUMED_ERROR)
LEAST_ERROR: Final = 0.02

Row = Mapping[str, Any]
Points = Sequence[tuple[int, float]]


FILLS: Final = 0.5
"""An op that delays a collective for more than this share of its remaining time holds every SM that
it can use: other ops admit the collective at once, and GEMMs in their last wave.
"""


def contention_fit(
    rows: Sequence[Row],
    *,
    sm_count: int,
    lanes: Row | None = None,
    waits: Mapping[str, Sequence[float]] | None = None,
) -> ContentionFit:
    """Return the fit of a message's rows (op, size_bytes, ctas, compute by family, collective,
    spread).

    Rows with a CTA count give the law. A row with NCCL's own choice (ctas 0) then shows which CTA
    count that choice resembles. Without CTA counts, as on gloo, slowdowns are stored by size.
    ``lanes``: how two concurrent collectives affected each other (shared, factor), if measured.
    ``waits``, by family: the times that collectives waited for an op that they met, as shares of
    its remaining time.
    """
    counted = [row for row in rows if row["ctas"]]
    fit = _by_ctas(counted, rows, sm_count) if counted else _by_size(rows)
    if waits:
        filling = {family for family, found in waits.items() if median(found) > FILLS}
        laws = (replace(law, fills=law.family in filling) for law in fit.compute)
        fit = replace(fit, compute=tuple(laws))
    if lanes is None:
        return fit
    measured = Slowdown(factor=max(1.0, _short(lanes["factor"])), error=LEAST_ERROR)
    if lanes["shared"]:
        return replace(fit, same_links=measured)
    return replace(fit, other_links=measured)


def assumptions(rows: Sequence[Row], lanes: Row | None) -> str:
    """Return the parts of the fit that were not measured, as a text for the provenance."""
    found = []
    if lanes is None or not lanes["shared"]:
        found.append("two collectives at once on the same links share them evenly")
    if lanes is None or lanes["shared"]:
        found.append("two collectives on different links do not disturb each other")
    if not any("collective" in row for row in rows):
        found.append("compute does not slow collectives")
    if any(row.get("emulated") for row in rows):
        found.append("NCCL's CTAs disturb as emulated ones do, which stream through memory")
    sized = [row["compute"].keys() for row in rows if not row["ctas"]]
    if any(families != sized[0] for families in sized):
        found.append("ops too long for a size's all-reduces slow as with the nearest sizes")
    return f"Assumed: {'; '.join(found)}."


def with_earlier_sizes(fit: ContentionFit, earlier: ContentionFit) -> ContentionFit:
    """Return ``fit`` with an earlier run's slowdowns by operation and size; take the mean of those
    in both runs."""
    if not fit.by_size:
        return fit
    rows = {(row.op, row.bytes): row for row in earlier.by_size}
    for row in fit.by_size:
        key = row.op, row.bytes
        rows[key] = _mean(row, rows[key]) if key in rows else row
    return replace(fit, by_size=tuple(rows[key] for key in sorted(rows)))


def _mean(one: SizeContention, other: SizeContention) -> SizeContention:
    families = sorted({*one.compute, *other.compute})
    compute = {
        family: fmean(row.compute[family] for row in (one, other) if family in row.compute)
        for family in families
    }
    return one._replace(
        compute=compute, collective_factor=fmean((one.collective_factor, other.collective_factor))
    )


def law_of(points: Points, sm_count: int) -> tuple[float, float]:
    """Return (a, f) of slowdown = f · SMs / (SMs − a · C) through points (C, slowdown).

    a ≥ 0, f ≥ 1. Use least squares on 1 / slowdown = u − v · C, which is linear: f = 1 / u, a = SMs
    · v / u. A single point is explained by lost SMs alone (f = 1).
    """
    counts = [ctas for ctas, _ in points]
    left = [1 / max(1.0, factor) for _, factor in points]
    mean_c, mean_y = fmean(counts), fmean(left)
    wide = sum((c - mean_c) ** 2 for c in counts)
    slope = 0.0
    if wide:
        slope = -sum((c - mean_c) * (y - mean_y) for c, y in zip(counts, left, strict=True)) / wide
    top = mean_y + max(0.0, slope) * mean_c
    if not wide or top > 1.0:
        top = 1.0
        lost = sum(c * (1 - y) for c, y in zip(counts, left, strict=True))
        slope = lost / sum(c * c for c in counts)
    return _short(sm_count * max(0.0, slope) / top), _short(1 / top)


def _by_ctas(counted: Sequence[Row], rows: Sequence[Row], sm_count: int) -> ContentionFit:
    points: dict[str, list[tuple[int, float]]] = {}
    for row in counted:
        for family, factor in row["compute"].items():
            points.setdefault(family, []).append((row["ctas"], factor))
    laws = {family: law_of(points[family], sm_count) for family in sorted(points)}
    off = [
        abs(compute_slowdown(*laws[family], ctas, sm_count) / max(1.0, factor) - 1)
        for family, found in points.items()
        for ctas, factor in found
    ]
    stretch = [max(1.0, row["collective"]) for row in rows if "collective" in row]
    error = max(LEAST_ERROR, _short(fmean(off)), _spread(rows))
    return ContentionFit(
        sm_count=sm_count,
        default_ctas=_like(laws, [row for row in rows if not row["ctas"]], sm_count),
        compute=tuple(
            ComputeContention(family=family, sms_per_cta=per_cta, factor=factor, error=error)
            for family, (per_cta, factor) in laws.items()
        ),
        collective=Slowdown(
            factor=fmean(stretch) if stretch else 1.0,
            kind="fitted" if stretch else "assumed",
            error=error if stretch else ASSUMED_ERROR,
        ),
        same_links=SHARED_LINKS,
        other_links=OTHER_LINKS,
    )


def _like(laws: Mapping[str, tuple[float, float]], chosen: Sequence[Row], sm_count: int) -> int:
    """Return the CTA count whose slowdowns are nearest to those with NCCL's own choice."""
    seen = [
        (laws[family], factor)
        for row in chosen
        for family, factor in row["compute"].items()
        if family in laws and laws[family][0]
    ]
    if not seen:
        return DEFAULT_CTAS

    def miss(ctas: int) -> float:
        return sum(
            math.log(compute_slowdown(*law, ctas, sm_count) / max(1.0, factor)) ** 2
            for law, factor in seen
        )

    return min(range(1, MOST_CTAS + 1), key=miss)


def _by_size(rows: Sequence[Row]) -> ContentionFit:
    by_size = tuple(
        SizeContention(
            op=row["op"],
            bytes=row["size_bytes"],
            compute={family: max(1.0, row["compute"][family]) for family in sorted(row["compute"])},
            collective_factor=_beside_compute(row, rows),
        )
        for row in sorted(rows, key=lambda row: (row["op"], row["size_bytes"]))
    )
    error = max(LEAST_ERROR, _spread(rows))
    known = any("collective" in row for row in rows)
    return ContentionFit(
        sm_count=1,
        default_ctas=1,
        compute=tuple(
            ComputeContention(
                family=family,
                sms_per_cta=0.0,
                factor=fmean(row.compute[family] for row in by_size if family in row.compute),
                error=error,
            )
            for family in sorted({family for row in by_size for family in row.compute})
        ),
        collective=Slowdown(
            factor=fmean(row.collective_factor for row in by_size),
            kind="fitted" if known else "assumed",
            error=error if known else ASSUMED_ERROR,
        ),
        same_links=SHARED_LINKS,
        other_links=OTHER_LINKS,
        by_size=by_size,
    )


def _beside_compute(row: Row, rows: Sequence[Row]) -> float:
    """Return the slowdown of the row's collectives. If none of them ran wholly during a step,
    return that of the nearest measured size, of the same operation if possible."""
    known = [other for other in rows if "collective" in other]
    if not known:
        return 1.0

    def far(other: Row) -> tuple[bool, float]:
        return other["op"] != row["op"], abs(math.log(other["size_bytes"] / row["size_bytes"]))

    nearest = min(known, key=far)
    return max(1.0, float(nearest["collective"]))


def _spread(rows: Sequence[Row]) -> float:
    """Return the relative spread of the slowdowns between steps, averaged over rows."""
    return _short(fmean(row["spread"] for row in rows))


def _short(value: float) -> float:
    return float(f"{value:.5g}")
