"""Grid of cuts: the fastest plan of each number of row and column slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from domino_tune.results.tune import GridCell
from simulator.case import Case
from simulator.errors import InfeasiblePlanError
from simulator.memory import peak_bytes
from simulator.plan import Order, SlicePlan
from simulator.predict import order_of, predict
from simulator.units import MS_PER_NS

ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16)
COLUMNS: Final = (1, 2, 4, 8)
FIXED_ORDERS: Final[tuple[Order, ...]] = ("inter", "intra", "paper")
NEAR_FULL: Final = 0.9
"""Share of a GPU's memory above which the memory of each cell is checked."""

NOTE: Final = (
    "Each cell is the fastest plan of order greedy, with weight gradients merged or not, and dgrad "
    "whole or in as many pieces as columns (without column slices also of inter, intra and paper). "
    "Both blocks have the same column slices."
)


def plan_grid(case: Case, known_peak_bytes: int) -> tuple[GridCell, ...]:
    """Return one cell a cut. ``known_peak_bytes`` is the peak memory of any plan of the case.

    Slices hardly change the memory, so it is checked for each cell only where it is nearly full.
    """
    near_full = known_peak_bytes > NEAR_FULL * case.capacity_bytes
    batch = case.workload.micro_batch_size
    return tuple(
        _cell(case, rows, columns, near_full)
        for rows in ROWS
        if rows <= batch
        for columns in COLUMNS
    )


def _cell(case: Case, rows: int, columns: int, near_full: bool) -> GridCell:
    try:
        times = {plan: predict(case, plan).makespan_ns for plan in _variants(rows, columns)}
        best = min(times, key=times.__getitem__)
        if near_full:
            case.check_memory(best, peak_bytes(case, best, order_of(case, best)))
    except InfeasiblePlanError as error:
        return GridCell(
            row_slices=rows, col_slices=columns, iteration_ms=None, plan=None, reason=error.reason
        )
    return GridCell(
        row_slices=rows, col_slices=columns, iteration_ms=times[best] * MS_PER_NS, plan=best
    )


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
