"""The map of cuts: the fastest plan of each number of row and column slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from domino_tune.results import GridCell
from domino_tune.search import Evaluation
from simulator.errors import InfeasiblePlanError
from simulator.plan import MAX_ROW_SLICES, SlicePlan

COLUMNS: Final = (1, 2, 4, 8)
VARIANTS: Final[tuple[dict[str, Any], ...]] = (
    {"order": "greedy", "wgrad": "fill"},
    {"order": "greedy", "wgrad": "fill", "merge_wgrad": True},
    {"order": "intra", "wgrad": "eager"},
    {"order": "intra", "wgrad": "deferred"},
    {"order": "intra", "wgrad": "eager", "merge_wgrad": True},
    {"order": "inter", "wgrad": "eager"},
    {"order": "inter", "wgrad": "deferred"},
    {"order": "paper", "wgrad": "eager"},
    {"order": "paper", "wgrad": "deferred"},
)
MS: Final = 1e-6


def plan_grid(
    evaluate: Callable[[SlicePlan], Evaluation], micro_batch_size: int
) -> tuple[GridCell, ...]:
    """One cell a cut, the same column slices in both blocks, forward and backward."""
    rows = range(1, min(MAX_ROW_SLICES, micro_batch_size) + 1)
    return tuple(_cell(evaluate, row, column) for row in rows for column in COLUMNS)


def _cell(evaluate: Callable[[SlicePlan], Evaluation], rows: int, columns: int) -> GridCell:
    best: tuple[int, SlicePlan] | None = None
    reason = ""
    for variant in VARIANTS:
        try:
            plan = SlicePlan(
                row_slices=rows, attn_col_slices=columns, mlp_col_slices=columns, **variant
            )
            time_ns = evaluate(plan).iteration_ns
        except InfeasiblePlanError as error:
            reason = reason or error.reason
            continue
        if best is None or time_ns < best[0]:
            best = (time_ns, plan)
    if best is None:
        return GridCell(
            row_slices=rows, col_slices=columns, iteration_ms=None, plan=None, reason=reason
        )
    return GridCell(row_slices=rows, col_slices=columns, iteration_ms=best[0] * MS, plan=best[1])
