"""What an H100 takes from our own rows of an H200: the same chip behind slower memory.

GEMMs keep the measured ratio of a backward GEMM to the forward one of its shape. Pointwise ops keep
their rate in the L2 cache; beyond it, rates follow the memory bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lab.fits.common import rounded
from lab.fits.gemm import fit_gemm
from lab.fits.pointwise import fit_pointwise
from simulator.lookup.gemm import ACCUMULATE_BYTES, GemmFit, GemmRow
from simulator.lookup.gemm_law import make_law
from simulator.lookup.pointwise import PointwiseFit, PointwiseRow
from simulator.ops import Gemm
from simulator.profile import Machine, Profile

TRANSFER_ERROR: Final = 0.05
"""Expected error of an H200's ratio or rate on an H100: forward GEMMs of the same shape differ by
4 % on average (309 shapes, ``scripts/bench h200``)."""
_BACKWARD: Final = (("dgrad", False), ("wgrad", False), ("wgrad", True))


def backward_gemms(h200: Profile, forward: GemmFit, machine: Machine) -> tuple[GemmFit, ...]:
    """Return laws of dgrad and wgrad on ``machine``, by layout and way to write C.

    A row of the H200 gives one timing: the forward law of the shape, times what the row takes over
    the H200's forward GEMM of that shape, plus what fp32 sums cost more behind slower memory.
    """
    return tuple(
        _backward(h200, forward, machine, layout, accumulate) for layout, accumulate in _BACKWARD
    )


def _backward(
    h200: Profile, forward: GemmFit, machine: Machine, layout: str, accumulate: bool
) -> GemmFit:
    law = make_law(forward.law, forward.params, machine.sm_count)
    table = h200.gemm_table()
    slower_us = 1 / (1e3 * machine.memory_bandwidth_gb_s)
    slower_us -= 1 / (1e3 * h200.machine.memory_bandwidth_gb_s)
    rows: Sequence[GemmRow] = h200.section("gemm").rows
    timings = []
    for row in rows:
        if (row.layout, row.accumulate) == (layout, accumulate):
            ratio = row.median_us / table.estimate(Gemm(row.m, row.n, row.k)).duration_us
            us = law.parts(row.m, row.n, row.k).total_us * ratio
            us += ACCUMULATE_BYTES * row.m * row.n * slower_us if accumulate else 0.0
            timings.append((row.m, row.n, row.k, us))
    fit = fit_gemm(timings, machine.sm_count, layout=layout, accumulate=accumulate)
    return replace(fit, error=rounded(fit.error + TRANSFER_ERROR, 3))


def pointwise_laws(h200: Profile, machine: Machine) -> tuple[PointwiseFit, ...]:
    """Return a law by name: those that the H200 timed, fitted; those that it assumes, assumed."""
    section = h200.section("pointwise")
    faster = machine.memory_bandwidth_gb_s / h200.machine.memory_bandwidth_gb_s
    rows: Sequence[PointwiseRow] = [
        row for row in section.rows if row.pieces == 1 and row.bytes_written
    ]
    timed = [
        fit_pointwise([row for row in rows if row.name == name], (name,))
        for name in sorted({row.name for row in rows})
    ]
    return tuple(
        replace(
            fit,
            large_gb_s=rounded(fit.large_gb_s * faster),
            error=rounded(fit.error + TRANSFER_ERROR, 2),
        )
        for fit in sorted((*timed, *section.fits), key=lambda fit: fit.names)
    )
