"""Fit the contention law to ops that run while a collective runs all the time, by op family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from lab.fits.common import Floats, rounded
from simulator.contention import ComputeContention
from simulator.errors import InputError

_START = (0.2, 1.0, 0.5)
_NOTHING = 1e-9
_LOW, _HIGH = (0.0, 1.0, 0.0), (3.0, 2.0, 100.0)


class Beside(NamedTuple):
    """One cell: an op of ``case`` that takes ``alone_us`` alone, and ``slowdown`` times as long
    while a collective of ``ctas`` CTAs runs."""

    family: str
    case: str
    ctas: int
    alone_us: float
    slowdown: float


@dataclass(frozen=True, kw_only=True)
class BesideFit:
    """The law of one family; both errors are MAPE."""

    law: ComputeContention
    error: float
    leave_case_out_error: float


def fit_beside(cells: Sequence[Beside], *, sm_count: int) -> BesideFit:
    """Fit the law to all cells; ``leave_case_out_error`` predicts each case from the others.

    Raise InputError for fewer than two cases.
    """
    cases = sorted({cell.case for cell in cells})
    if len(cases) < 2:
        raise InputError(f"The contention law needs at least two ops, got {cases}.")
    parameters = _solve(cells, sm_count)
    left_out: list[float] = []
    for case in cases:
        others = _solve([cell for cell in cells if cell.case != case], sm_count)
        left_out += _errors(others, [cell for cell in cells if cell.case == case], sm_count)
    error = rounded(float(np.mean(left_out)), 3)
    return BesideFit(
        law=_law([rounded(float(value)) for value in parameters], cells[0].family, error),
        error=rounded(float(np.mean(_errors(parameters, cells, sm_count))), 3),
        leave_case_out_error=error,
    )


def _law(
    parameters: Sequence[float] | Floats, family: str, error: float = 0.0
) -> ComputeContention:
    sms_per_cta, factor, us_per_cta = (float(value) for value in parameters)
    return ComputeContention(
        family=family, sms_per_cta=sms_per_cta, factor=factor, us_per_cta=us_per_cta, error=error
    )


def _slowdowns(parameters: Floats, cells: Sequence[Beside], sm_count: int) -> Floats:
    law = _law(parameters, cells[0].family)
    return np.array([law.slowdown(cell.ctas, sm_count, cell.alone_us) for cell in cells])


def _errors(parameters: Floats, cells: Sequence[Beside], sm_count: int) -> list[float]:
    measured = np.array([cell.slowdown for cell in cells])
    errors: list[float] = np.abs(_slowdowns(parameters, cells, sm_count) / measured - 1).tolist()
    return errors


def _solve(cells: Sequence[Beside], sm_count: int) -> Floats:
    measured = np.array([cell.slowdown for cell in cells])
    found = least_squares(
        lambda p: np.log(_slowdowns(p, cells, sm_count) / measured),
        _START, bounds=(_LOW, _HIGH), jac="3-point", loss="soft_l1", f_scale=0.02,
        ftol=1e-14, xtol=1e-14, gtol=1e-14,
    )  # fmt: skip
    # A parameter at its lower bound comes back as 1e-20.
    return np.where(found.x < _NOTHING, 0.0, found.x)
