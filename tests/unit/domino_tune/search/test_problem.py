"""Ties, and the best of close trials."""

from __future__ import annotations

from domino_tune.search.problem import (
    Trial,
    choose_best,
    piece_count,
    ties,
)
from simulator.plan import SlicePlan


def trial(index: int, time_ns: int, peak: int = 1000, rows: int = 2) -> Trial:
    plan = SlicePlan(row_slices=rows)
    return Trial(plan=plan, iteration_ns=time_ns, peak_bytes=peak, index=index)


def test_a_percent_more_is_a_tie() -> None:
    assert [ties(value, 1000) for value in (999, 1000, 1010, 1011)] == [True, True, True, False]


def test_the_best_has_the_least_memory_then_pieces_then_time() -> None:
    fast = trial(0, 1000, 2000)
    assert choose_best([fast, trial(1, 1010, 1000), trial(2, 1011, 1)]).index == 1
    assert choose_best([trial(0, 1000, rows=4), trial(1, 1010, 1010), trial(2, 1010)]).index == 1
    assert choose_best([trial(0, 1000, rows=4), trial(1, 1010, 1011), trial(2, 1009)]).index == 2
    assert choose_best([trial(3, 1001), trial(4, 1000)]).index == 4
    assert choose_best([trial(4, 1000), trial(3, 1000)]).index == 3


def test_pieces_are_all_reduces_of_a_layer() -> None:
    plan = SlicePlan(row_slices=3, attn_col_slices=2, mlp_col_slices=4, mlp_dgrad_slices=1)
    assert piece_count(plan) == 3 * (2 + 4 + 2 + 1)
