"""What is said of a choice that is not the fastest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.requests import TuneRequest
from domino_tune.results.tune import TrialResult, TuneResult, found_words
from domino_tune.verbs.report import tie_sentence
from domino_tune.verbs.tune import tune


@pytest.fixture(scope="module")
def result() -> TuneResult:
    request = TuneRequest(
        model="gpt3-1.3b", profile="a100-sxm", tp=8, seq_length=1024, micro_batch_size=4
    )
    return tune(request)


def _with_faster(result: TuneResult, memory_gib: float, rows: int) -> TuneResult:
    best = result.best
    trial = TrialResult(
        plan=replace(best.plan, row_slices=rows),
        micro_batch_size=4,
        iteration_ms=0.995 * best.iteration_ms,
        peak_memory_gib=memory_gib,
        fits_chance=0.97,
    )
    return replace(result, trials=(trial,))


def test_a_choice_that_is_the_fastest_needs_no_word(result: TuneResult) -> None:
    best = result.best
    trial = _with_faster(result, best.peak_memory_gib, 2).trials[0]
    assert tie_sentence(replace(result, trials=(replace(trial, iteration_ms=1e9),))) == ""


def test_the_page_says_why_the_fastest_was_not_chosen(result: TuneResult) -> None:
    memory = result.best.peak_memory_gib
    said = tie_sentence(_with_faster(result, 1.5 * memory, 4))
    assert "0.50% less" in said
    assert f"{memory:.3f} instead of {1.5 * memory:.3f} GiB" in said
    assert "fewer slices" in tie_sentence(_with_faster(result, memory, 16))


def test_it_is_told_whether_the_choice_is_the_fastest_or_ties_with_it(result: TuneResult) -> None:
    among = f"of {result.evaluations + result.pruned:,} plans under this profile"
    equal = replace(result.trials[0], iteration_ms=result.best.iteration_ms)
    assert found_words(replace(result, trials=(equal,))) == f"fastest {among}"
    faster = _with_faster(result, 1.0, 4)
    assert found_words(faster) == f"within 1 % of the fastest {among}"
    assert "others may be faster" in found_words(replace(faster, optimality="best_found"))
