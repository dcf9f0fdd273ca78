"""Fit what collectives wait for memory, to collectives that run beside ops that stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from lab.fits.common import Floats, rounded
from simulator.errors import InputError
from simulator.memory_queue import MemoryQueue

_START, _LOW, _HIGH = (1.02, 0.02, 0.04), (1.0, 0.0, 0.0), (1.2, 5.0, 1.0)


class Streamed(NamedTuple):
    """One cell: a collective of ``ctas`` CTAs takes ``slowdown`` times as long beside an op of
    ``case``, which moves ``gb_s`` alone."""

    case: str
    ctas: int
    gb_s: float
    slowdown: float


class MemoryFit(NamedTuple):
    """The law, and the factor that collectives have beside any op. ``law.error`` is the MAPE with
    each case left out."""

    law: MemoryQueue
    factor: float


def fit_memory(cells: Sequence[Streamed], attained_gb_s: float) -> MemoryFit:
    """Fit the law to all cells. Raise InputError for fewer than two cases."""
    cases = sorted({cell.case for cell in cells})
    if len(cases) < 2:
        raise InputError(f"The law of memory needs at least two ops, got {cases}.")
    left_out: list[float] = []
    for case in cases:
        others = _solve([cell for cell in cells if cell.case != case], attained_gb_s)
        left_out += [
            abs(_slowdown(others, cell) / cell.slowdown - 1) for cell in cells if cell.case == case
        ]
    found = _solve(cells, attained_gb_s)
    law = found.law
    return MemoryFit(
        MemoryQueue(
            attained_gb_s=rounded(attained_gb_s, 4), busiest=rounded(law.busiest, 3),
            wait=rounded(law.wait, 3), by_cta=rounded(law.by_cta, 3),
            error=rounded(float(np.mean(left_out)), 3),
        ),
        rounded(found.factor),
    )  # fmt: skip


def _slowdown(fit: MemoryFit, cell: Streamed) -> float:
    return fit.factor * fit.law.slowdown(cell.gb_s, cell.ctas)


def _solve(cells: Sequence[Streamed], attained_gb_s: float) -> MemoryFit:
    measured = np.array([cell.slowdown for cell in cells])
    busiest = max(cell.gb_s for cell in cells) / attained_gb_s

    def fit_of(parameters: Floats) -> MemoryFit:
        factor, wait, by_cta = map(float, parameters)
        return MemoryFit(
            MemoryQueue(
                attained_gb_s=attained_gb_s, busiest=busiest, wait=wait, by_cta=by_cta, error=0.0
            ),
            factor,
        )

    def off(parameters: Floats) -> Floats:
        fit = fit_of(parameters)
        found: Floats = np.log(np.array([_slowdown(fit, cell) for cell in cells]) / measured)
        return found

    found = least_squares(
        off, _START, bounds=(_LOW, _HIGH), jac="3-point", loss="soft_l1", f_scale=0.02,
        ftol=1e-14, xtol=1e-14, gtol=1e-14,
    )  # fmt: skip
    return fit_of(found.x)
