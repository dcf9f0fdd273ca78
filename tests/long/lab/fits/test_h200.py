"""The H200 profile is what our own measurements make of it."""

from __future__ import annotations

import pytest

from domino_tune.store.profiles import load_profile
from lab.bench.accuracy import withheld_errors


@pytest.mark.parametrize(
    ("layout", "limit"), [("forward", 0.02), ("dgrad", 0.023), ("wgrad", 0.021)]
)
def test_shapes_that_were_withheld_are_looked_up(layout: str, limit: float) -> None:
    errors = withheld_errors(load_profile("h200-sxm"), layout)
    assert len(errors) > 800
    assert sum(errors) / len(errors) < limit
