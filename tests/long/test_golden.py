"""Answers of all verbs are those of results/golden_predictions.json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.golden import FILE, answer, cases

KNOWN = json.loads(FILE.read_text("utf-8"))


@pytest.mark.sampled(count=12)
@pytest.mark.parametrize(
    ("name", "verb", "arguments"), [pytest.param(*case, id=case[0]) for case in cases()]
)
def test_an_answer_is_as_it_was(name: str, verb: str, arguments: dict[str, Any]) -> None:
    known = dict(KNOWN[name])
    assert known.pop("ask") == json.loads(json.dumps({"verb": verb, **arguments}))
    assert answer(verb, arguments) == known
