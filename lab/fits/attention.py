"""Attention: the law of ``simulator.lookup.attention``, fitted to timings, or set to the level of
a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import numpy as np

from lab.fits.common import (
    ASSUMED_ERROR,
    TRANSFER_ERROR,
    Floats,
    Sources,
    robust,
    rounded,
    withheld,
)
from simulator.errors import InputError
from simulator.lookup.attention import DIRECTIONS, AttentionFit, AttentionRow
from simulator.profile import Machine

_START: Final = (14.0, 0.56, 630.0, 3000.0, 1.2)
"""Fixed µs, ns a row, TFLOP/s, TFLOP/s of a tile, blend."""
_BOUNDS: Final = ((0.0, 0.0, 1.0, 1.0, 1.0), (1e3, 1e3, 1e4, 1e5, 20.0))
SMALL: Final = 64
"""Elements of the smaller heads that models have."""
_LINEAR_ABOVE: Final = 0.05
_FOLDS: Final = 5


def fit_attention(
    forward: Sequence[AttentionRow],
    pairs: Sequence[AttentionRow],
    *,
    sm_count: int,
    withheld_by: Callable[[AttentionRow], Any] = lambda row: row.seq,
) -> AttentionFit:
    """Fit the law to forward timings of one head size, its backward ratio to pairs of timings.

    Raise InputError where the rows mix head sizes, or where a backward row of ``pairs`` has no
    forward row.
    """
    law = fit_forward(forward, sm_count=sm_count, withheld_by=withheld_by)
    ratio, ratio_error = _backward_ratio(pairs)
    return replace(law, backward_ratio=rounded(ratio, 3), backward_error=rounded(ratio_error, 2))


def fit_forward(
    forward: Sequence[AttentionRow],
    *,
    sm_count: int,
    withheld_by: Callable[[AttentionRow], Any] = lambda row: row.seq,
) -> AttentionFit:
    """Fit the law to forward timings of one head size; its backward ratio is 1.

    ``error`` is the mean error of shapes withheld in five folds of ``withheld_by``, by default the
    sequence length.
    """
    head_dims = {(row.head_dim, row.v_head_dim) for row in forward}
    if len(head_dims) != 1 or len(forward) < 10:
        raise InputError(f"The law needs ≥ 10 rows of one head size, got {sorted(head_dims)}.")

    def off(others: list[AttentionRow], mine: list[AttentionRow]) -> list[float]:
        law = _law(others, forward, sm_count)
        return [abs(sum(law.shares_us(r.signature)) / r.median_us - 1) for r in mine]

    error = float(np.mean(withheld(forward, withheld_by, off, folds=_FOLDS)))
    return replace(_law(forward, forward, sm_count), error=rounded(error, 2))


def assumed_on(fit: AttentionFit, of: Machine, machine: Machine) -> AttentionFit:
    """Return the law of another GPU, rates by peak FLOP/s and the cost of a row by memory
    bandwidth."""
    flops = machine.peak_tflops["bf16"] / of.peak_tflops["bf16"]
    memory = machine.memory_bandwidth_gb_s / of.memory_bandwidth_gb_s
    return replace(
        fit, kind="assumed", sm_count=machine.sm_count, tflops=rounded(fit.tflops * flops),
        tile_tflops=rounded(fit.tile_tflops * flops), row_ns=rounded(fit.row_ns / memory),
        error=ASSUMED_ERROR,
    )  # fmt: skip


class Level(NamedTuple):
    """What few rows take over a law forward, and backward over forward, each with its spread."""

    times: float
    error: float
    backward_ratio: float
    backward_error: float

    def of(self, law: AttentionFit, *, transfer: float = 0.0) -> AttentionFit:
        """Return the law at this level, ``transfer`` less sure: what another GPU's rows are."""
        return replace(
            _scaled(law, self.times), backward_ratio=self.backward_ratio,
            error=rounded(law.error + self.error + transfer, 2),
            backward_error=self.backward_error,
        )  # fmt: skip


def level(law: AttentionFit, rows: Sequence[AttentionRow]) -> Level:
    """Return the level of rows of the law's head size, timed both ways."""
    over = [
        row.median_us / sum(law.shares_us(row.signature))
        for row in rows
        if row.direction == "forward"
    ]
    times, (ratio, spread) = median(over), _backward_ratio(rows)
    off = fmean(abs(one / times - 1) for one in over)
    return Level(times, off, rounded(ratio, 3), rounded(spread, 2))


def our_rows(sources: Sources, dims: tuple[int, int]) -> list[AttentionRow]:
    """Return our H200's rows of heads with these elements of a key and of a value, both ways, by
    the faster one of torch's libraries."""
    keys, values = dims
    return [
        AttentionRow(
            batch=row["batch"], heads=row["queries"], kv_heads=row["keys"], seq=row["seq"],
            head_dim=keys, v_head_dim=values if values != keys else 0, direction=direction,
            median_us=rounded(min(
                ns for way, ns in row["ns"].items() if way.endswith(direction)
            ) / 1e3, 5),
        )
        for row in sources.ours("attention")
        if (row["key_size"], row["value_size"]) == dims
        for direction in DIRECTIONS
    ]  # fmt: skip


def small_heads(ours: AttentionFit, sources: Sources, *, transfer: bool = False) -> AttentionFit:
    """Return the law of heads of 64 on Hopper: ``ours``, our H200's law of larger ones, as they
    follow from it, at the level of our rows; with ``transfer`` on an H100, the same chip."""
    share = SMALL / ours.head_dim
    law = replace(ours, head_dim=SMALL, row_ns=rounded(ours.row_ns * share),
                  tflops=rounded(ours.tflops * share**0.5),
                  tile_tflops=rounded(ours.tile_tflops * share**0.5))  # fmt: skip
    found = level(law, our_rows(sources, (SMALL, SMALL)))
    return found.of(law, transfer=TRANSFER_ERROR if transfer else 0.0)


def _scaled(law: AttentionFit, times: float) -> AttentionFit:
    return replace(
        law, fixed_us=rounded(law.fixed_us * times), row_ns=rounded(law.row_ns * times),
        tflops=rounded(law.tflops / times), tile_tflops=rounded(law.tile_tflops / times),
    )  # fmt: skip


def _law(
    fitted: Sequence[AttentionRow], rows: Sequence[AttentionRow], sm_count: int
) -> AttentionFit:
    """Return the forward law of the ``fitted`` rows, for the range of all ``rows``."""
    numbers = (rounded(float(one)) for one in _solve(fitted, sm_count))
    fixed, row_ns, tflops, tile_tflops, blend = numbers
    return AttentionFit(
        sm_count=sm_count, head_dim=rows[0].head_dim, v_head_dim=rows[0].v_head_dim,
        fixed_us=fixed, row_ns=row_ns, tflops=tflops,
        tile_tflops=tile_tflops, blend=blend, backward_ratio=1.0,
        min_seq=min(row.seq for row in rows), max_seq=max(row.seq for row in rows),
        error=0.0, backward_error=0.0,
    )  # fmt: skip


def _solve(rows: Sequence[AttentionRow], sm_count: int) -> Floats:
    """Solve robust least squares of the log error, vectorised over the rows."""
    batch, heads, seq, times = (
        np.array([getattr(row, name) for row in rows], dtype=np.float64)
        for name in ("batch", "heads", "seq", "median_us")
    )
    dims = rows[0].head_dim + (rows[0].v_head_dim or rows[0].head_dim)
    flops = np.array([row.signature.flops for row in rows], dtype=np.float64)
    tile_flops = 2 * 128 * seq * dims * sm_count

    def off(p: Floats) -> Floats:
        work = batch * heads * seq * p[1] / 1e3 + flops / (p[2] * 1e6)
        tile = tile_flops / (p[3] * 1e6)
        return np.asarray(np.log((p[0] + (work ** p[4] + tile ** p[4]) ** (1 / p[4])) / times))

    return robust(off, _START, _BOUNDS, linear_above=_LINEAR_ABOVE, scaled=True)


def _backward_ratio(pairs: Sequence[AttentionRow]) -> tuple[float, float]:
    """Return median backward/forward over shapes timed both ways, and its relative spread."""
    forward = {r.signature: r.median_us for r in pairs if r.direction == "forward"}
    ratios = []
    for row in pairs:
        if row.direction == "backward":
            other = row.signature._replace(direction="forward")
            if other not in forward:
                raise InputError(f"No forward timing for {row.signature}; add one.")
            ratios.append(row.median_us / forward[other])
    if not ratios:
        raise InputError("The backward ratio needs shapes timed forward and backward.")
    middle = float(np.median(ratios))
    return middle, float(np.max(np.abs(np.array(ratios) / middle - 1)))
