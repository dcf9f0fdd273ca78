"""The law of how long collectives wait for memory, fitted to times that it makes."""

from __future__ import annotations

from itertools import product

import pytest

from lab.fits.contention import Streamed, fit_memory
from simulator.contention import MemoryQueue
from simulator.errors import InputError

LAW = MemoryQueue(attained_gb_s=4000, busiest=0.95, wait=0.03, by_cta=0.05, error=0.0)


def cells(factor: float = 1.01) -> list[Streamed]:
    return [
        Streamed(f"{name} at {gb_s:g}", ctas, gb_s, factor * LAW.slowdown(gb_s, ctas))
        for name, gb_s, ctas in product(("one", "other"), (1000.0, 2500.0, 3800.0), (1, 4, 16, 32))
    ]


def test_a_law_is_found_again() -> None:
    law, factor = fit_memory(cells(), 4000)
    assert factor == pytest.approx(1.01, rel=1e-3)
    assert (law.wait, law.by_cta, law.busiest) == pytest.approx((0.03, 0.05, 0.95))
    assert law.error == pytest.approx(0, abs=1e-6)


def test_an_op_of_its_own_kind_shows_in_what_is_left_out() -> None:
    odd = [cell._replace(case="odd", slowdown=1.5 * cell.slowdown) for cell in cells()[:4]]
    assert fit_memory([*cells(), *odd], 4000)[0].error > 0.05


def test_one_op_is_too_few() -> None:
    with pytest.raises(InputError, match="at least two ops"):
        fit_memory(cells()[:4], 4000)
