"""Curves beside a law: what a profile keeps of a table, and how it is looked up."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.errors import ProfileError
from simulator.lookup.gemm_law import RooflineLaw
from simulator.lookup.gemm_table import Curves, StoredCurves, columns, curves_of

LAW = RooflineLaw(fixed_us=2.0, flops_per_us=1e9, bytes_per_us=1e7)
SIZES = [
    (m, n, k) for m in (512, 1024, 4096) for n in (1024, 2048, 8192) for k in (1024, 4096)
]  # fmt: skip


def made(factor: float = 1.1) -> Curves:
    m, n, k = np.array(SIZES, dtype=np.float64).T
    return curves_of(m, n, k, factor * LAW.times_us(m, n, k), LAW)


def test_rows_come_back_in_permille_of_the_law() -> None:
    curves = made()
    assert curves.m == (512, 1024, 4096)
    assert len(curves.nk) == 6
    assert {one for curve in curves.permille for one in curve} == {1100}
    m, n, k, over = columns(curves)
    assert sorted(zip(m, n, k, strict=True)) == sorted(SIZES)
    assert set(over) == {1.1}


def test_a_shape_between_takes_what_its_neighbours_take_over_the_law() -> None:
    us, error = StoredCurves(made(), LAW).predict(2048, 4096, 2048)
    assert us == pytest.approx(1.1 * LAW.parts(2048, 4096, 2048).total_us, rel=0.01)
    assert error > 0
    assert StoredCurves(made(), LAW).ranges == {
        "m": (512, 4096),
        "n": (1024, 8192),
        "k": (1024, 4096),
    }


def test_what_a_pair_lacks_is_between_its_own_rows() -> None:
    m, n, k = (
        np.array(one, dtype=np.float64) for one in ([512, 2048, 1024], [64] * 2 + [128], [64] * 3)
    )
    us = LAW.times_us(m, n, k) * np.array([1.0, 1.2, 1.5])
    assert curves_of(m, n, k, us, LAW).permille == ((1000, 1100, 1200), (1500, 1500, 1500))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"m": ()}, "not be empty"),
        ({"m": (1024, 512)}, "rise"),
        ({"permille": ((1000,),)}, "curves of"),
        ({"permille": ((1000, 0),)}, "permille"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], said: str) -> None:
    fields: dict[str, object] = {"m": (512, 1024), "nk": ((64, 64),), "permille": ((1000, 1000),)}
    with pytest.raises(ProfileError, match=said):
        Curves(**{**fields, **changes})  # type: ignore[arg-type]
