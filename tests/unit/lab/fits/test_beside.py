"""The contention law of ops that run beside a collective all along."""

from __future__ import annotations

import pytest

from lab.fits.contention import Beside, fit_beside
from simulator.contention import ComputeContention, compute_slowdown
from simulator.errors import InputError

SMS = 132


def cells(case: str, per_cta: float = 0.7, factor: float = 1.02) -> list[Beside]:
    return [
        Beside("gemm", case, ctas, 100.0, compute_slowdown(per_cta, factor, ctas, SMS))
        for ctas in (1, 4, 16, 32)
    ]


@pytest.mark.parametrize("us_per_cta", [0.0, 1.1])
def test_a_law_is_found_again(us_per_cta: float) -> None:
    law = ComputeContention(
        family="gemm", sms_per_cta=0.7, factor=1.02, us_per_cta=us_per_cta, error=0.1
    )
    beside = [
        Beside("gemm", case, ctas, alone_us, law.slowdown(ctas, SMS, alone_us))
        for case, alone_us in (("short", 60.0), ("middle", 250.0), ("long", 900.0))
        for ctas in (1, 4, 16, 32)
    ]
    fit = fit_beside(beside, sm_count=SMS)
    assert (fit.sms_per_cta, fit.factor) == pytest.approx((0.7, 1.02), rel=1e-3)
    assert fit.us_per_cta == pytest.approx(us_per_cta, rel=1e-3, abs=1e-6)
    assert fit.error == pytest.approx(0.0, abs=1e-6)


def test_an_op_of_its_own_kind_shows_in_what_is_left_out() -> None:
    odd = cells("odd", per_cta=1.9)
    fit = fit_beside([*cells("a"), *cells("b"), *odd], sm_count=SMS)
    assert fit.error > 0.05


def test_one_op_is_too_few() -> None:
    with pytest.raises(InputError, match="at least two ops"):
        fit_beside(cells("a"), sm_count=SMS)
