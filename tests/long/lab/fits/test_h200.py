"""The H200 profile is what our own measurements make of it."""

from __future__ import annotations

import pytest

from domino_tune.store.profiles import load_profile
from lab.bench.accuracy import withheld_errors
from lab.fits.common import Sources
from lab.fits.contention import fit_memory, streamed_cells
from lab.fits.measured import attained_gb_s, h200_ops
from tests.conftest import REPOSITORY

SOURCES = Sources(REPOSITORY / "data", REPOSITORY / "measurements")


@pytest.mark.parametrize(
    ("layout", "limit"), [("forward", 0.02), ("dgrad", 0.023), ("wgrad", 0.021)]
)
def test_shapes_that_were_withheld_are_looked_up(layout: str, limit: float) -> None:
    errors = withheld_errors(load_profile("h200-sxm"), layout)
    assert len(errors) > 800
    assert sum(errors) / len(errors) < limit


def test_the_law_of_waits_for_memory_is_that_of_the_records() -> None:
    attained = attained_gb_s(h200_ops(SOURCES))
    law = fit_memory(streamed_cells(SOURCES.ours("contention")), attained)[0]
    assert load_profile("h200-sxm").section("contention").fit.memory == law
    assert law.error < 0.05
