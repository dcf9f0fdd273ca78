"""The contention law of ops that run beside a collective all along."""

from __future__ import annotations

import pytest

from lab.fits.contention import Beside, fit_beside
from simulator.contention import compute_slowdown
from simulator.errors import InputError

SMS = 132


def cells(case: str, per_cta: float = 0.7, factor: float = 1.02) -> list[Beside]:
    return [
        Beside("gemm", case, ctas, 100.0, compute_slowdown(per_cta, factor, ctas, SMS))
        for ctas in (1, 4, 16, 32)
    ]


def test_a_law_is_found_again_of_collectives_that_stay_for_a_part_of_an_op() -> None:
    beside = []
    for case, alone_us in (("short", 60.0), ("middle", 250.0), ("long", 900.0)):
        for ctas in (1, 4, 16, 32):
            slow = compute_slowdown(0.7, 1.02, ctas, SMS)
            whole = Beside("gemm", case, ctas, alone_us, 0.0, stay_us=150.0)
            # Work is done at 1 / slow for 150 us, then at 1; or all of it at 1 / slow.
            took_us = min(alone_us * slow, 150.0 + alone_us - 150.0 / slow)
            beside.append(whole._replace(slowdown=took_us / alone_us))
    fit = fit_beside(beside, sm_count=SMS)
    assert (fit.sms_per_cta, fit.factor) == pytest.approx((0.7, 1.02), rel=1e-3)
    assert fit.error == pytest.approx(0.0, abs=1e-6)


def test_an_op_of_its_own_kind_shows_in_what_is_left_out() -> None:
    odd = cells("odd", per_cta=1.9)
    fit = fit_beside([*cells("a"), *cells("b"), *odd], sm_count=SMS)
    assert fit.error > 0.05


def test_one_op_is_too_few() -> None:
    with pytest.raises(InputError, match="at least two ops"):
        fit_beside(cells("a"), sm_count=SMS)
