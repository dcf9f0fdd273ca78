"""The map of cuts: the fastest plan of each number of row and column slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from domino_tune.case import Setup
from domino_tune.results import GridCell
from simulator.errors import InfeasiblePlanError
from simulator.memory import peak_bytes
from simulator.plan import Order, SlicePlan
from simulator.predict import order_of, predict

ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16)
COLUMNS: Final = (1, 2, 4, 8)
FIXED_ORDERS: Final[tuple[Order, ...]] = ("inter", "intra", "paper")
NEAR_FULL: Final = 0.9
"""Share of a GPU's memory from which on each cell's own need is looked at."""
MS: Final = 1e-6
NOTE: Final = (
    "Each cell: the fastest of the greedy order with weight gradients apart or merged and dgrad "
    "whole or cut like the columns (without column slices also of inter, intra and paper); the "
    "same column slices in both blocks."
)


def plan_grid(setup: Setup, known_peak_bytes: int) -> tuple[GridCell, ...]:
    """One cell a cut. ``known_peak_bytes``: what some plan of this setup needs.

    Slices hardly change the memory, so it is counted cell by cell only where it is nearly full.
    """
    near_full = known_peak_bytes > NEAR_FULL * setup.capacity_bytes
    batch = setup.workload.micro_batch_size
    return tuple(
        _cell(setup, rows, columns, near_full)
        for rows in ROWS
        if rows <= batch
        for columns in COLUMNS
    )


def _cell(setup: Setup, rows: int, columns: int, near_full: bool) -> GridCell:
    try:
        times = {plan: predict(setup.case, plan).makespan_ns for plan in _variants(rows, columns)}
        best = min(times, key=times.__getitem__)
        if near_full:
            setup.check_memory(best, peak_bytes(setup.case, best, order_of(setup.case, best)))
    except InfeasiblePlanError as error:
        return GridCell(
            row_slices=rows, col_slices=columns, iteration_ms=None, plan=None, reason=error.reason
        )
    return GridCell(row_slices=rows, col_slices=columns, iteration_ms=times[best] * MS, plan=best)


def _variants(rows: int, columns: int) -> Iterator[SlicePlan]:
    for merge in (False, True) if rows > 1 else (False,):
        for dgrad in sorted({1, columns}):
            yield SlicePlan(
                row_slices=rows,
                attn_col_slices=columns,
                mlp_col_slices=columns,
                attn_dgrad_slices=dgrad,
                mlp_dgrad_slices=dgrad,
                merge_wgrad=merge,
            )
    if rows <= 2 and columns == 1:
        for order in FIXED_ORDERS:
            yield SlicePlan(row_slices=rows, order=order, wgrad="eager")
