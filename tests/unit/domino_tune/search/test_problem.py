"""Ties, the best of close trials, and what options and evaluations refuse."""

from __future__ import annotations

from typing import Any

import pytest

from domino_tune.search import Evaluation, SearchOptions
from domino_tune.search.problem import Trial, choose_best, piece_count, ties
from simulator.errors import InputError
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


@pytest.mark.parametrize(
    "options", [{"trials": 0}, {"trials": 1.5}, {"seed": -1}, {"seed": True}, {"seed": 0.5}]
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    assert SearchOptions(trials=1).seed == 0
    with pytest.raises(InputError):
        SearchOptions(**options)


def test_evaluations_take_time_and_perhaps_memory() -> None:
    assert Evaluation(iteration_ns=1, peak_bytes=0).peak_bytes == 0
    for values in ({"iteration_ns": 0, "peak_bytes": 0}, {"iteration_ns": 1, "peak_bytes": -1}):
        with pytest.raises(InputError):
            Evaluation(**values)
