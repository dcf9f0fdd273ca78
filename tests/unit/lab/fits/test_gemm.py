"""The fit finds a law again, says its error, and meets the numbers on published rows."""

from __future__ import annotations

import json

import pytest

from lab.fits.gemm import Shape, fit_gemm, leave_out_error
from simulator.errors import InputError
from simulator.lookup.gemm_law import make_law
from tests.unit.simulator.lookup.gemm_shapes import PARAMS, SMS

M = (1, 16, 64, 256, 512, 1024, 2048, 4096, 8192)
NK = (256, 512, 1024, 2048, 5120, 8192)


def made(m: int, n: int, k: int) -> Shape:
    return m, n, k, make_law("tiled", PARAMS, SMS).parts(m, n, k).total_us


ROWS: list[Shape] = [made(m, n, k) for m in M for n in NK for k in NK]


def test_a_law_is_found_again_and_the_rows_order_does_not_matter() -> None:
    fit = fit_gemm(ROWS, SMS)
    assert fit.error < 0.02
    assert fit.ranges == {"m": (1, 8192), "n": (256, 8192), "k": (256, 8192)}
    assert json.loads(json.dumps(fit.params))["fixed_us"] == fit.params["fixed_us"]
    assert fit_gemm(ROWS[::-1], SMS) == fit
    law = make_law(fit.law, fit.params, SMS)
    for m, n, k in [(3000, 3000, 3000), (4096, 640, 5120)]:
        assert law.parts(m, n, k).total_us == pytest.approx(made(m, n, k)[3], rel=0.05)


def test_interpolation_follows_a_law_it_was_not_told() -> None:
    law = fit_gemm([row for row in ROWS if row[0] <= 1024], SMS)
    assert leave_out_error(ROWS, fit=law, sm_count=SMS) < 0.06


@pytest.mark.parametrize(
    "rows",
    [[], ROWS[:50], [*ROWS, (8, 8, 8, float("nan"))], [*ROWS, (8, 8, 8, 0.0)]],
)
def test_rows_that_cannot_be_fitted_are_refused(rows: list[Shape]) -> None:
    with pytest.raises(InputError, match="at least 200 rows"):
        fit_gemm(rows, SMS)


def test_leaving_out_needs_two_pairs() -> None:
    one, fit = [row for row in ROWS if row[1:3] == (512, 512)], fit_gemm(ROWS, SMS)
    with pytest.raises(InputError, match="two different"):
        leave_out_error(one, fit=fit, sm_count=SMS)
