"""Scores of known times: errors, orders and regrets."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace

import pytest

from lab.fidelity.scores import Cell, Setting, checks, score, setting_from, tables, to_json
from simulator.draws import PLAN_ERROR
from tests.conftest import REPOSITORY


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
    assert (found.worst_setting, found.worst_setting_error) == ("m, 1gbit", found.error)


def test_regret_is_relative_to_the_best_plan() -> None:
    found = score([MEASURED])
    assert found.tuned_regret == 0.0
    assert found.two_regret == pytest.approx((90 / 80 * 90 / 80.8) ** 0.5 - 1)
    assert found.random_regret is not None
    assert 0 < found.random_regret < 0.3
    alike = setting(cell("inter", 1.0, 100.0, 100.0), cell("tuned", 1.0, 103.0, 103.0))
    assert score([alike]).tuned_regret is None  # its plans do not differ


def test_the_best_is_picked_by_one_launch_and_judged_by_the_other() -> None:
    lucky = setting(cell("inter", 1.0, 90.0, 110.0), cell("tuned", 1.0, 100.0, 100.0))
    assert lucky.regret("tuned") == pytest.approx((100 / 110 * 100 / 100) ** 0.5 - 1)


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
    both = score([swapped, noisy])
    assert (both.pairs, both.left_out) == (3, 1)
    assert both.concordance == pytest.approx(1 / 3)
    assert score([noisy]).concordance is None


@pytest.mark.parametrize("second", [100.0, 200.0])
def test_no_noise_makes_an_error_right(second: float) -> None:
    """The limit is 3 % however much two launches differ."""
    for predicted, ok in ((104.0, True), (108.0, False)):
        asked = setting(cell("inter", predicted, 100.0, second), cell("tuned", 80.0, 80.0, 80.0))
        (check,) = (c for c in checks([asked]) if c.what.startswith("iteration time"))
        assert (check.target, check.ok) == ("≤ 3%", ok)


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


def test_intervals_are_held_against_speedups_within_rounds() -> None:
    """The baseline is 5 % slower in the second launch, and so is the plan: 1.25 in both."""
    held = replace(cell("inter", 1.0, 80.0, 84.0), drawn=(1.2, 1.3))
    wrong = replace(cell("tuned", 1.0, 50.0, 52.5), drawn=(1.2, 1.3))
    asked = setting(cell("baseline", 1.0, 100.0, 105.0), held, wrong)
    assert asked.speedup("inter") == pytest.approx(1.25)
    assert asked.speedup("tuned") == pytest.approx(2.0)
    assert list(asked.covered()) == [True, False]
    (check,) = (one for one in checks([asked]) if one.what.startswith("speed-ups"))
    assert (check.target, check.measured, check.ok) == ("80% ± 8%", "50.0%", False)


def test_the_simulators_own_error_is_what_real_ranks_showed() -> None:
    """Half of normal numbers are within 0.6745 standard errors; a speed-up has two plans'."""
    plain = json.loads((REPOSITORY / "results" / "fidelity.json").read_text())
    errors = []
    for one in map(setting_from, plain["settings"]):
        baseline = one.cell("baseline")
        predicted = {cell.plan: baseline.predicted_ms / cell.predicted_ms for cell in one.cells}
        errors += [
            abs(math.log(speedup / one.speedup(plan)))
            for plan, speedup in predicted.items()
            if plan != "baseline"
        ]
    assert len(errors) == 112
    measured = statistics.median(errors) / 0.6745 / math.sqrt(2)
    assert round(measured, 3) == PLAN_ERROR


def test_the_page_in_results_says_what_its_numbers_give() -> None:
    """fidelity.md and the scores of fidelity.json follow from the measured rounds."""
    results = REPOSITORY / "results"
    text = (results / "fidelity.json").read_text()
    plain = json.loads(text)
    settings = [setting_from(one) for one in plain["settings"]]
    assert to_json(settings, plain["machine"]) == text
    page = (results / "fidelity.md").read_text().splitlines()
    rows = [
        f"| {' | '.join(row)} |" for table in tables(settings, "Fidelity") for row in table.rows
    ]
    assert [row for row in rows if row not in page] == []
    assert len([line for line in page if line.startswith("|")]) == len(rows) + 2 * 3
