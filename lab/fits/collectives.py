"""Collectives: piecewise α–β laws of NCCL's and of multimem ones."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from domino_tune.measure.importers.tables import collectives_csv, number, records
from lab.fits.common import Floats, Gpu, Sources, mape, nonnegative, rounded
from simulator.errors import InputError
from simulator.lookup.collective_fit import MIB, CollectiveFit, GroupKey
from simulator.lookup.collectives import CollectiveRow
from simulator.ops import CollectiveKind
from simulator.profile import CollectiveSection

MAX_KNOTS: Final = 4
_LEAST_GAP: Final = 4  # least ratio of neighbouring knots, so that every segment has points
_POINTS_A_PARAMETER: Final = 1.5
_TRIED: Final = 30
CTAS: Final = (2, 4, 8, 16, 32)
"""Of figure_7.csv's multimem all-reduces."""
BEST: Final[tuple[tuple[CollectiveKind, str], ...]] = (
    ("multimem_all_reduce", "multimem_ar_us"),
    ("multimem_reduce_scatter", "multimem_rs_us"),
    ("multimem_all_gather", "multimem_ag_us"),
)
"""Collective -> its column in figure_5.csv, at its best CTAs."""
_RANKS: Final = 8
_ELEMENT_BYTES: Final = 2
_SIZE: Final = ("BL", "hidden_size")


def collective_section(gpu: Gpu, fits: Iterable[CollectiveFit]) -> CollectiveSection:
    """Return the section of these laws; its error is the mean of its all-reduces'."""
    made = tuple(sorted(fits, key=lambda fit: fit.group))
    gb_s, latency_us = gpu.told["collectives"]["nic"]
    error = statistics.fmean(fit.error for fit in made if fit.op == "all_reduce")
    return CollectiveSection(
        fits=made, nic_gb_s=gb_s, nic_latency_us=latency_us,
        provenance=gpu.words("collectives", rounded(error, 2)),
    )  # fmt: skip


def node_collectives(gpu: Gpu, sources: Sources) -> tuple[CollectiveFit, ...]:
    """Return the laws of the table of a GPU's node."""
    table = sources.table(gpu.told["collectives"]["table"])
    return fit_collectives(collectives_csv(table).rows)


def multimem_collectives(sources: Sources) -> tuple[CollectiveFit, ...]:
    """Return the laws on eight H100s, all-reduces by CTAs; CTAs 0 are the best ones of each size,
    which the table's authors chose."""
    reduce = BEST[0][0]
    by_ctas = [(reduce, ctas, f"multimem_ar_us_ctas_{ctas}") for ctas in CTAS]
    best = [(op, 0, column) for op, column in BEST]
    rows = []
    for name, timed in (("figure_7.csv", by_ctas), ("figure_5.csv", best)):
        columns = (*_SIZE, *(column for _, _, column in timed))
        for line, row in records(sources.table(f"multimem/{name}"), columns):
            tokens, hidden = (number(line, row, column) for column in _SIZE)
            rows += [
                CollectiveRow(
                    op=op, nodes=1, per_node=_RANKS, ctas=ctas,
                    bytes=round(tokens * hidden) * _ELEMENT_BYTES,
                    median_us=number(line, row, column),
                )
                for op, ctas, column in timed
            ]  # fmt: skip
    return fit_collectives(rows)


def fit_collectives(rows: Iterable[CollectiveRow]) -> tuple[CollectiveFit, ...]:
    """Return a law per group (op, nodes, per node, CTAs), sorted; ``error``: leave-one-out MAPE."""
    groups: dict[GroupKey, list[CollectiveRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return tuple(fit_group(groups[group]) for group in sorted(groups))


def fit_group(rows: Sequence[CollectiveRow]) -> CollectiveFit:
    """Return the law of one group's rows, with the knots of the least leave-one-out error."""
    rows = sorted(rows, key=lambda row: row.bytes)
    if len(rows) < 3:
        raise InputError(f"A law for {rows[0].group} needs at least 3 sizes, got {len(rows)}.")
    sizes = np.array([row.bytes for row in rows], dtype=np.float64) / MIB
    times = np.array([row.median_us for row in rows])
    knots = _best_knots(sizes, times)
    latency, *slopes = _solve(_design(sizes, knots), times)
    return CollectiveFit(
        op=rows[0].op,
        nodes=rows[0].nodes,
        per_node=rows[0].per_node,
        ctas=rows[0].ctas,
        latency_us=rounded(max(latency, 0.1)),
        knots_bytes=tuple(int(knot * MIB) for knot in knots),
        us_per_mib=tuple(rounded(slope) for slope in slopes),
        min_bytes=rows[0].bytes,
        max_bytes=rows[-1].bytes,
        error=rounded(_leave_one_out(sizes, times, knots), 2),
    )


def _design(sizes: Floats, knots: Sequence[float]) -> Floats:
    """Return columns: 1, then MiB spent in each segment."""
    edges = [0.0, *knots, np.inf]
    segments = [np.clip(sizes, low, high) - low for low, high in itertools.pairwise(edges)]
    return np.stack([np.ones_like(sizes), *segments], axis=1)


def _solve(design: Floats, times: Floats) -> Floats:
    """Solve least squares of the relative error, without negative coefficients."""
    return nonnegative(design, times, 1 / times)[0]


def _leave_one_out(sizes: Floats, times: Floats, knots: Sequence[float]) -> float:
    """Return the MAPE of each inner point predicted from the others, with fixed knots."""
    design = _design(sizes, knots)
    if len(sizes) < 5:
        return _in_sample(sizes, times, knots)
    others = ~np.eye(len(sizes), dtype=bool)
    inner = range(1, len(sizes) - 1)
    predicted = np.array([design[i] @ _solve(design[others[i]], times[others[i]]) for i in inner])
    return mape(predicted, times[1:-1])


def _in_sample(sizes: Floats, times: Floats, knots: Sequence[float]) -> float:
    design = _design(sizes, knots)
    return mape(design @ _solve(design, times), times)


def _best_knots(sizes: Floats, times: Floats) -> tuple[float, ...]:
    """Return knots at powers of two inside the range, as many as reduce leave-one-out error."""
    inside = [2.0**power for power in range(-20, 20) if sizes[1] <= 2.0**power <= sizes[-2]]
    most = min(MAX_KNOTS, int(len(sizes) / _POINTS_A_PARAMETER) - 2)
    candidates: list[tuple[float, ...]] = [()]
    for knot_count in range(1, most + 1):
        spaced = [
            knots
            for knots in itertools.combinations(inside, knot_count)
            if all(b >= a * _LEAST_GAP for a, b in itertools.pairwise(knots))
        ]
        # Leaving points out costs seconds, so it is tried for the best in-sample candidates only.
        spaced.sort(key=lambda knots: (round(_in_sample(sizes, times, knots), 6), knots))
        candidates += spaced[:_TRIED]
    scored = [(round(_leave_one_out(sizes, times, knots), 6), knots) for knots in candidates]
    return min(scored, key=lambda item: (item[0], len(item[1]), item[1]))[1]
