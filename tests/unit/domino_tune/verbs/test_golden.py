"""Predictions are those of results/golden_predictions.json. The long ring holds whole answers. Here
a processor may add up the last digit of a law differently."""

from __future__ import annotations

import json
from typing import Any

import pytest

from domino_tune.requests import SimulateRequest
from domino_tune.verbs.resolve import Chosen, plan_of, resolve
from domino_tune.verbs.simulate import simulate_plan
from tests.support.golden import FILE, NUMBERS, RECIPE, cases

KNOWN = json.loads(FILE.read_text("utf-8"))
SIMULATED = [case for case in cases() if case[1] == "simulate"]
DENSE = [case for case in SIMULATED if not case[0].startswith(RECIPE)]
CHOSEN = [
    (name, of_it) for name, _, of_it in (*DENSE[::8], *SIMULATED[len(DENSE):])
    if "refused" not in KNOWN[name]
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments"), [pytest.param(*case, id=case[0]) for case in CHOSEN]
)
def test_a_prediction_is_as_it_was(name: str, arguments: dict[str, Any]) -> None:
    """Where it changes as it should: `python -m tests.support.golden --write`."""
    request, known = SimulateRequest(**arguments), KNOWN[name]
    case = resolve(request)
    found = simulate_plan(case, Chosen.of(case, plan_of(request, None, case), None))
    told = {what: getattr(found, what) for what in NUMBERS if what in known}
    known = {what: known[what] for what in told}
    assert told == pytest.approx(known, rel=1e-6, abs=1e-6)  # rounded so
