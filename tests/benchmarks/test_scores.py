"""Scores of known times: errors, orders and regrets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.fidelity.page import NO_SETTING, checks, choice_checks, markdown, to_json
from benchmarks.fidelity.scores import Cell, Setting, score


def cell(plan: str, predicted: float, first: float, second: float) -> Cell:
    return Cell(
        plan=plan, label=plan, predicted_ms=predicted, steady_ms=predicted, first=(first,) * 3,
        second=(second,) * 3, emulated=(first,) * 3, predicted_emulated_ms=0.5 * first,
        exposed_ms=1.0, predicted_exposed_ms=1.0, hidden=0.9,
    )  # fmt: skip


def setting(*cells: Cell) -> Setting:
    return Setting(
        model="m", link="1gbit", profile_id="sha256:0", profile_s=1.0, speed=1.0, cells=cells
    )


MEASURED = setting(
    cell("baseline", 110.0, 100.0, 102.0),
    cell("inter", 81.0, 90.0, 90.0),
    cell("tuned", 80.0, 80.0, 80.8),
)


def test_errors_are_relative_to_the_first_launch() -> None:
    found = score([MEASURED])
    assert found.error == pytest.approx((0.10 + 0.10 + 0.0) / 3)
    assert found.noise == pytest.approx((0.02 + 0.0 + 0.01) / 3)
    assert found.emulated_error == 0.5
    assert found.limit == 0.03
    assert not found.accurate


def test_regret_is_relative_to_the_best_plan() -> None:
    found = score([MEASURED])
    assert found.tuned_regret == 0.0
    assert found.two_regret == pytest.approx((90 / 80 * 90 / 80.8) ** 0.5 - 1)
    assert found.random_regret is not None
    assert 0 < found.random_regret < 0.3


def test_the_best_is_picked_by_one_launch_and_judged_by_the_other() -> None:
    lucky = setting(cell("inter", 1.0, 90.0, 110.0), cell("tuned", 1.0, 100.0, 100.0))
    assert lucky.regret("tuned") == pytest.approx((100 / 110 * 100 / 100) ** 0.5 - 1)


def test_regret_needs_plans_that_differ() -> None:
    alike = setting(cell("inter", 1.0, 100.0, 100.0), cell("tuned", 1.0, 103.0, 103.0))
    assert score([alike]).tuned_regret is None
    verdicts = {check.what: check for check in choice_checks(score([alike]), 0.02)}
    for plan in ("`tune`", "always two", "a random"):
        what = f"worst regret of {plan}"
        regret = next(check for name, check in verdicts.items() if name.startswith(what))
        assert (regret.measured, regret.ok) == (NO_SETTING, None)


def test_only_pairs_beyond_the_noise_are_judged() -> None:
    found = score([MEASURED])
    assert (found.pairs, found.concordance) == (3, 1.0)
    swapped = setting(
        cell("baseline", 70.0, 100.0, 102.0),
        cell("inter", 81.0, 90.0, 90.0),
        cell("tuned", 80.0, 80.0, 80.8),
    )
    assert score([swapped]).concordance == pytest.approx(1 / 3)
    noisy = setting(cell("inter", 2.0, 100.0, 90.0), cell("tuned", 1.0, 95.0, 97.0))
    assert score([noisy]).pairs == 0


def test_a_slow_round_changes_no_ratio() -> None:
    drift = (1.0, 1.3, 0.8)
    steady = setting(cell("inter", 1.0, 100.0, 100.0), cell("tuned", 1.0, 90.0, 90.0))
    drifting = setting(
        *(
            replace(c, first=tuple(t * d for t, d in zip(c.first, drift, strict=True)))
            for c in steady.cells
        )
    )
    assert drifting.regret("inter") == pytest.approx(steady.regret("inter"))
    assert drifting.pair_noise == pytest.approx(0.0)


def test_the_page_shows_missed_targets() -> None:
    verdicts = {check.what: check.verdict for check in checks([MEASURED])}
    assert verdicts["iteration time, mean absolute error"] == "MISS"
    assert verdicts["communication hidden by the tuned plan, m, 1gbit"] == "ok"
    page = markdown([MEASURED], "a machine")
    assert "| m | 1gbit | baseline | 110.0 | 100.0 | +10.0% |" in page
    plain = json.loads(to_json([MEASURED], "a machine"))
    assert plain["score"]["accurate"] is False
    assert plain["settings"][0]["cells"][2]["plan"] == "tuned"
