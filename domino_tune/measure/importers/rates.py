"""Compare the rates of imported rows with what the machine can reach, to find times in
wrong units."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from domino_tune.requests import UNITS as UNITS
from simulator.errors import InputError
from simulator.lookup import L2_MULTIPLE
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.gemm_law import moved_bytes
from simulator.lookup.pointwise import PointwiseRow
from simulator.ops import busbw_factor
from simulator.profile import Machine

UNIT_NAMES: Final = {
    "ns": "nanoseconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
}
COMPUTE_MARGIN: Final = 1.1
"""How far compute may exceed the peak: clocks rise above those in the data sheet."""
MEASURED_MARGIN: Final = 3.0
"""The same for compute and memory if the peaks are those of the ops that were timed on the machine:
other ops may be faster.
"""
CACHE_MB: Final = 64.0
"""Assumed L2 if a machine states none, MB."""
MEMORY_MARGIN: Final = 1.5
"""How far traffic of more than L2_MULTIPLE caches may exceed the memory bandwidth: a quarter may
stay in the cache.
"""
CACHE_MARGIN: Final = 10.0
"""The same for less traffic. GPUs' caches are some 3 times as fast as memory, CPUs' up to 10."""
LINK_MARGIN: Final = 2.0
"""How far bus bandwidth may exceed the memory bandwidth: each rank reads or writes the tensor in
its own memory, and bus bandwidth counts a byte of an all-reduce up to twice.
"""
LINK_SHARE: Final = 50
"""How many times slower than memory the links inside a node may be before rows count as slow."""
OVERHEAD_US: Final = 20.0
"""Time that any op may take in addition to its work: launch and latency."""
SLOW: Final = 100.0
"""How many times OVERHEAD_US plus the work at full rate the median row may take."""


class Bound(NamedTuple):
    """What limits an op. ``work`` per µs is its rate in ``unit``, at most ``most``.

    ``usual_us``: overhead plus work at the machine's rate; None if the rate is unknown.
    ``floor_us``: look-ups raise faster rows to this time, see ``simulator.lookup``.
    """

    op: str
    work: float
    unit: str
    most: float
    limit: str
    usual_us: float | None
    floor_us: float = 0.0


def check_rates(
    rows: Sequence[tuple[str, Any]], machine: Machine, unit: str | None, *, takes_unit: bool
) -> tuple[str, ...]:
    """Raise InputError for a row that is faster than the machine can be; name the likely unit.

    ``rows``: (place in the file, row). ``unit``: given by the user, or None if microseconds were
    assumed. If the median row is hundreds of times slower than the machine, raise InputError if the
    unit was assumed, else return a warning.
    """
    timed = [(bound_of(row, machine), row.median_us) for _, row in rows]
    fast = [i for i, (bound, us) in enumerate(timed) if bound.work > bound.most * us]
    if fast:
        (bound, us), place = timed[fast[0]], rows[fast[0]][0]
        raise InputError(
            f"{place}: {bound.op} in {us:.4g} us would be {bound.work / us:,.0f} {bound.unit}, "
            f"above {bound.limit}; {len(fast):,} of {len(rows):,} rows are too fast. "
            + _remedy(timed, unit, _options(rows[fast[0]][1]), takes_unit=takes_unit)
        )
    slowness = [(us / (SLOW * bound.usual_us), i) for i, (bound, us) in enumerate(timed)
                if bound.usual_us is not None]  # fmt: skip
    if not slowness or (middle := statistics.median_high(slowness))[0] <= 1:
        return ()
    times, place = SLOW * middle[0], rows[middle[1]][0]
    bound, us = timed[middle[1]]
    found = (
        f"The median row, {place}, is {times:,.0f} times as slow as {machine.gpu} would be: "
        f"{bound.op} in {us:,.0f} us."
    )
    if not takes_unit or unit is not None:
        return (f"{found} Is the table of another machine, or its unit wrong?",)
    raise InputError(
        f"{found} {_remedy(timed, unit, _options(rows[middle[1]][1]), takes_unit=True)} "
        "If the column is in microseconds, confirm it with --unit us."
    )


def lifted_rows(rows: Sequence[Any], machine: Machine) -> tuple[str, ...]:
    """Return a warning if look-ups will replace times of ``rows`` by longer ones from the data
    sheet."""
    lifted = sum(row.median_us < bound_of(row, machine).floor_us for row in rows)
    if not lifted:
        return ()
    return (
        f"{lifted:,} of {len(rows):,} rows are faster than the data sheet of {machine.gpu} allows; "
        "look-ups give the time of the data sheet instead.",
    )


def _options(row: Any) -> str:
    """Return the options that say what the rows describe."""
    return "--op, --nodes, --ranks-per-node" if isinstance(row, CollectiveRow) else "--dtype"


def _remedy(
    timed: list[tuple[Bound, float]], unit: str | None, options: str, *, takes_unit: bool
) -> str:
    """Return the remedy: the unit that makes all rows possible and their median usual, if any.

    ``options``: those that may be wrong if no unit fits, besides the machine and the unit.
    """
    given = UNITS[unit or "us"]
    for name, factor in UNITS.items():
        if factor != given and _is_plausible(timed, factor / given):
            column = f"The column looks like {UNIT_NAMES[name]}"
            if takes_unit:
                return f"{column}: give --unit {name}."
            return f"{column}: write it in the unit that the format has."
    options += ", --unit" if takes_unit else ""
    return f"Correct these rows, remove them, or correct --into (the machine), {options}."


def _is_plausible(timed: list[tuple[Bound, float]], factor: float) -> bool:
    if any(bound.work > bound.most * us * factor for bound, us in timed):
        return False
    usual = [factor * us / bound.usual_us for bound, us in timed if bound.usual_us is not None]
    return not usual or statistics.median(usual) <= SLOW


def bound_of(row: Any, machine: Machine) -> Bound:
    """Return what limits the op of an imported row on ``machine``."""
    if isinstance(row, CollectiveRow):
        return _collective(row, machine)
    return _pointwise(row, machine) if isinstance(row, PointwiseRow) else _compute(row, machine)


def _compute(row: Any, machine: Machine) -> Bound:
    op = row.signature
    peak = machine.peak_tflops.get(op.dtype) or max(machine.peak_tflops.values(), default=1e12)
    if op.kind == "gemm":
        name = f"a GEMM of {op.m}×{op.n}×{op.k} (m×n×k)"
        moved = moved_bytes(op)
    else:
        name = f"attention of {op.batch}×{op.heads}×{op.seq}×{op.head_dim} (batch×heads×seq×dim)"
        moved = 0
    return Bound(
        op=name,
        work=op.flops / 1e6,
        unit="TFLOP/s",
        most=_margin(machine, COMPUTE_MARGIN) * peak,
        limit=f"the peak of {machine.gpu} for {op.dtype}, {peak:,g} TFLOP/s",
        usual_us=OVERHEAD_US + op.flops / peak / 1e6 + moved / machine.memory_bandwidth_gb_s / 1e3,
        floor_us=machine.roof.floor_us(op.dtype, op.flops, moved),
    )


def _pointwise(row: PointwiseRow, machine: Machine) -> Bound:
    size, memory = row.bytes_read + row.bytes_written, machine.memory_bandwidth_gb_s
    streams = size > L2_MULTIPLE * 1e6 * (machine.l2_mb or CACHE_MB)
    what = "the memory bandwidth" if streams else f"{CACHE_MARGIN:g} times the memory bandwidth"
    return Bound(
        op=f"{row.name} of {size:,} bytes",
        work=size / 1e3,
        unit="GB/s",
        most=memory * (_margin(machine, MEMORY_MARGIN) if streams else CACHE_MARGIN),
        limit=f"{what} of {machine.gpu}, {memory:,g} GB/s",
        usual_us=OVERHEAD_US + size / memory / 1e3,
        floor_us=machine.roof.floor_us(row.dtype, 0, size),
    )


def _margin(machine: Machine, of_data_sheet: float) -> float:
    """Return how far rows may exceed the machine's peaks; these are measured if it states no L2."""
    return of_data_sheet if machine.l2_mb else MEASURED_MARGIN


def _collective(row: CollectiveRow, machine: Machine) -> Bound:
    memory = machine.memory_bandwidth_gb_s
    work = row.bytes / 1e3 * busbw_factor(row.op, row.nodes * row.per_node)
    # Links between nodes may have any speed, so no time is known to be slow for them.
    inside = OVERHEAD_US + LINK_SHARE * work / memory if row.nodes == 1 else None
    return Bound(
        op=f"{row.op} of {row.bytes:,} bytes on {row.nodes}x{row.per_node} ranks",
        work=work,
        unit="GB/s of bus bandwidth",
        most=LINK_MARGIN * memory,
        limit=f"{LINK_MARGIN:g} times the memory bandwidth of {machine.gpu}, {memory:,g} GB/s",
        usual_us=inside,
    )
