"""Pointwise ops: fixed cost, bandwidth in cache, knee and bandwidth in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lab.fits.common import TRANSFER_ERROR, Floats, mape, nonnegative, rounded
from simulator.errors import InputError
from simulator.lookup.pointwise import PointwiseFit, PointwiseRow
from simulator.profile import Machine, Profile

MB: Final = 1_000_000
LEAST_ROWS: Final = 8
"""Twice as many as a law has numbers."""
KNEES_MB: Final = (10, 15, 20, 25, 30, 35, 40, 50, 60, 80)
_RESOLUTION_US: Final = 1.0  # tables have whole microseconds: reduces the weight of short times
_LIKE_ERROR: Final = 0.3
"""Expected error of an op that is taken to be like another."""


def transferred(
    other: Profile, machine: Machine, *, own: Sequence[PointwiseRow] = (), least_error: float = 0
) -> list[PointwiseFit]:
    """Return a law by name: those that the ``other`` GPU timed, fitted; those that it assumes,
    assumed. Rates within the L2 stay, beyond it they follow the memory bandwidth. Ops that have
    ``own`` rows get the law of these, if it is surer. With a ``least_error`` all are assumed."""
    section = other.section("pointwise")
    faster = machine.memory_bandwidth_gb_s / other.machine.memory_bandwidth_gb_s
    rows = [row for row in section.rows if row.pieces == 1 and row.bytes_written]
    timed = []
    for name in sorted({row.name for row in rows}):
        mine, there = (
            [row for row in known if (row.name, row.pieces) == (name, 1)] for known in (own, rows)
        )
        law = _at_bandwidth(fit_pointwise(there, (name,)), faster)
        timed.append(_surer(law, mine, there, faster) if mine else law)
    assumed = (_at_bandwidth(fit, faster) for fit in section.fits)
    laws = [
        replace(fit, error=max(least_error, rounded(fit.error + TRANSFER_ERROR, 2)))
        for fit in sorted((*timed, *assumed), key=lambda fit: fit.names)
    ]
    return [replace(law, kind="assumed") for law in laws] if least_error else laws


def _surer(
    law: PointwiseFit, own: Sequence[PointwiseRow], other: Sequence[PointwiseRow], faster: float
) -> PointwiseFit:
    """Return ``law``, another GPU's, with its error on ``own`` rows where that is more; or the law
    of these, continued by the other's rows of more bytes by memory bandwidth."""
    times = np.array([row.median_us for row in own])
    found = np.array([law.fixed_us + law.memory_us(_moved(row)) for row in own])
    checked = replace(law, error=max(law.error, rounded(mape(found, times), 2)))
    most = max(map(_moved, own))
    larger = (row for row in other if _moved(row) > most)
    continued = [*own, *(replace(row, median_us=row.median_us / faster) for row in larger)]
    return min(checked, fit_pointwise(continued, law.names), key=lambda fit: fit.error)


def _moved(row: PointwiseRow) -> int:
    return row.bytes_read + row.bytes_written


def _at_bandwidth(fit: PointwiseFit, faster: float) -> PointwiseFit:
    return replace(fit, large_gb_s=rounded(fit.large_gb_s * faster))


def as_assumed(fit: PointwiseFit, faster: float) -> PointwiseFit:
    """Return the law of a GPU for one whose memory is ``faster`` times as fast."""
    return replace(_at_bandwidth(fit, faster), kind="assumed")


def like(rows: Sequence[PointwiseRow], name: str, other: str, factor: float) -> PointwiseFit:
    """Return the law of the ``other`` op's whole rows, ``factor`` times as long, for ``name``."""
    scaled = [
        replace(row, median_us=factor * row.median_us)
        for row in rows
        if row.name == other and row.pieces == 1
    ]
    law = fit_pointwise(scaled, (name,))
    return replace(law, kind="assumed", error=max(_LIKE_ERROR, law.error))


def fit_pointwise(rows: Sequence[PointwiseRow], names: tuple[str, ...]) -> PointwiseFit:
    """Fit the law for ``names`` to rows of one op; ``error`` is of withheld sizes, five folds."""
    if len(rows) < LEAST_ROWS:
        raise InputError(f"A law for {names} needs at least {LEAST_ROWS} timings, got {len(rows)}.")
    rows = sorted(rows, key=lambda row: (_moved(row), row.key))
    sizes = np.array([_moved(row) for row in rows], dtype=np.float64)
    return law_of_sizes(names, sizes, np.array([row.median_us for row in rows]))


def law_of_sizes(names: tuple[str, ...], sizes: Floats, times: Floats) -> PointwiseFit:
    """Return the law of ``times``, us, of ascending ``sizes``, bytes."""
    sizes = sizes / MB
    knee, (fixed, small, large) = _solve(sizes, times)
    return PointwiseFit(
        names=names,
        fixed_us=rounded(fixed),
        small_gb_s=rounded(1e3 / max(small, 1e-6)),
        knee_bytes=knee * MB,
        large_gb_s=rounded(1e3 / max(large, 1e-6)),
        max_bytes=int(sizes[-1] * MB),
        error=rounded(_withheld_error(sizes, times), 2),
    )


def _design(sizes: Floats, knee: float) -> Floats:
    small = np.minimum(sizes, knee)
    return np.stack([np.ones_like(sizes), small, sizes - small], axis=1)


def _solve(sizes: Floats, times: Floats) -> tuple[int, Floats]:
    """Return the best knee and (fixed us, us per MB below it, us per MB above it)."""
    tried = {
        knee: nonnegative(_design(sizes, knee), times, 1 / (times + _RESOLUTION_US))
        for knee in KNEES_MB
    }
    best = min(tried, key=lambda knee: tried[knee][1])
    return best, tried[best][0]


def _withheld_error(sizes: Floats, times: Floats) -> float:
    """Return the mean relative error of every fifth size, for times well above the resolution."""
    fold = np.arange(len(sizes)) % 5
    predicted = np.empty_like(times)
    for out in range(5):
        knee, coefficients = _solve(sizes[fold != out], times[fold != out])
        predicted[fold == out] = _design(sizes[fold == out], knee) @ coefficients
    clear = times >= 5 * _RESOLUTION_US
    return mape(predicted[clear], times[clear])
