"""Fit the contention law to iterations in which a GEMM and an all-reduce run concurrently.

An iteration is two jobs that start together and slow each other until one ends. It also has a
constant time that belongs to the experiment (launches, events), not to the law.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from domino_tune.measure.importers.imported import text_of
from domino_tune.measure.importers.tables import count, microseconds, records
from lab.fits.common import Floats, mape, rounded
from simulator.errors import InputError

_START = (1.85, 1.11, 1.14, 50.0)  # SMs per CTA, compute factor, collective factor, constant us
_LOW, _HIGH = (0.0, 1.0, 1.0, 0.0), (3.0, 2.0, 2.0, 200.0)


class Overlap(NamedTuple):
    """One cell: a GEMM and a collective, each alone and both together, in µs."""

    shape: tuple[int, int, int]
    ctas: int
    gemm_us: float
    comm_us: float
    together_us: float


@dataclass(frozen=True, kw_only=True)
class OverlapFit:
    """The law's numbers, the experiment's constant, and both errors (MAPE)."""

    sms_per_cta: float
    compute_factor: float
    collective_factor: float
    constant_us: float
    error: float
    leave_shape_out_error: float


def read_overlap(data: bytes) -> tuple[Overlap, ...]:
    """Read cells of ``m,n,k,gemm_only,c1 … c32`` (ms); the header has ``comm_only by CTA``."""
    head = re.search(r"comm_only by CTA:((?: *\d+:[\d.]+)+)", text_of(data))
    if head is None:
        raise InputError("The overlap table's header does not give 'comm_only by CTA: 1:… 2:…'.")
    alone = {int(c): 1e3 * float(ms) for c, ms in re.findall(r"(\d+):([\d.]+)", head[1])}
    return tuple(
        Overlap(
            (count(i, row, "m"), count(i, row, "n"), count(i, row, "k")),
            ctas,
            1e3 * microseconds(i, row, "gemm_only"),
            comm_us,
            1e3 * microseconds(i, row, f"c{ctas}"),
        )
        for i, row in records(data, ("m", "n", "k", "gemm_only"))
        for ctas, comm_us in alone.items()
        if row.get(f"c{ctas}", "").strip()
    )


def fit_overlap(cells: Sequence[Overlap], *, sm_count: int) -> OverlapFit:
    """Fit the law to all cells; ``leave_shape_out_error`` predicts each shape from the others."""
    shapes = sorted({cell.shape for cell in cells})
    if len(shapes) < 2:
        raise InputError(f"The contention law needs at least two GEMM shapes, got {shapes}.")
    parameters = _solve(cells, sm_count)
    predicted: list[float] = []
    measured: list[float] = []
    for shape in shapes:
        others = _solve([cell for cell in cells if cell.shape != shape], sm_count)
        out = [cell for cell in cells if cell.shape == shape]
        predicted += list(predict(others, out, sm_count))
        measured += [cell.together_us for cell in out]
    every = np.array([cell.together_us for cell in cells])
    sms_per_cta, compute, collective, constant = (rounded(float(p)) for p in parameters)
    return OverlapFit(
        sms_per_cta=sms_per_cta,
        compute_factor=compute,
        collective_factor=collective,
        constant_us=constant,
        error=rounded(mape(predict(parameters, cells, sm_count), every), 3),
        leave_shape_out_error=rounded(mape(np.array(predicted), np.array(measured)), 3),
    )


def predict(parameters: Floats, cells: Sequence[Overlap], sm_count: int) -> Floats:
    """Return the µs of each iteration: both slowed until one ends, the rest at full speed."""
    per_cta, compute, collective, constant = parameters
    ctas = np.array([cell.ctas for cell in cells], dtype=np.float64)
    gemm = np.array([cell.gemm_us for cell in cells])
    comm = np.array([cell.comm_us for cell in cells])
    slow_gemm = compute * sm_count / (sm_count - per_cta * ctas)
    gemm_end, comm_end = gemm * slow_gemm, comm * collective
    gemm_first = gemm_end + comm - gemm_end / collective
    comm_first = comm_end + gemm - comm_end / slow_gemm
    return np.asarray(np.where(gemm_end < comm_end, gemm_first, comm_first) + constant)


def _solve(cells: Sequence[Overlap], sm_count: int) -> Floats:
    measured = np.array([cell.together_us for cell in cells])
    found = least_squares(
        lambda p: np.log(predict(p, cells, sm_count) / measured),
        _START, bounds=(_LOW, _HIGH), x_scale=_START, jac="3-point",
        loss="soft_l1", f_scale=0.02, ftol=1e-14, xtol=1e-14, gtol=1e-14, max_nfev=500,
    )  # fmt: skip
    return np.asarray(found.x, dtype=np.float64)
