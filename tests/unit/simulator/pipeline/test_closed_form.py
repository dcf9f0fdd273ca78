"""Bounds of pipelines: never above the truth, and near enough to rule plans out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domino_tune.search.simulated import space_of
from simulator.case import Case
from simulator.clocked_form import closed_form
from simulator.errors import InfeasiblePlanError
from simulator.peak import least_peak_bytes, peak_bytes
from simulator.predict import predict
from tests.unit.simulator.pipeline.test_pipeline import CASES, piped


def cases(given: dict[str, Any]) -> list[Case]:
    """The case at the clock that power leaves, and at the clock of its timings."""
    case = piped(**{"micro_batch_size": 4, **given})
    return [case, replace(case, profile=replace(case.profile, power=None))]


@pytest.mark.sampled(count=6)
@pytest.mark.parametrize("first", range(0, 1600, 400))
@pytest.mark.parametrize("given", CASES, ids=str)
def test_bounds_are_not_above_predictions(given: dict[str, Any], first: int) -> None:
    for case in cases(given):
        form = closed_form(case)
        for plan in list(space_of(case, None))[first::1600]:
            found = predict(case, plan).makespan_ns
            assert form.lower_bound_ns(plan) <= found
            assert form.lower_bound_ns(plan) > 0.6 * found
            assert form.prior_ns(plan) == pytest.approx(found, rel=0.35)


@pytest.mark.parametrize("given", CASES[:6], ids=str)
def test_the_least_memory_is_not_above_any_plans(given: dict[str, Any]) -> None:
    case = cases(given)[0]
    least = least_peak_bytes(case)
    for plan in list(space_of(case, None))[::900]:
        try:
            assert least <= peak_bytes(case, plan)
        except InfeasiblePlanError:
            continue
