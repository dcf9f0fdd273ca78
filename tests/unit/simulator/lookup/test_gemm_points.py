"""Scattered rows: exact where the law is, taught by alike shapes, pure in any order."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.lookup.gemm_law import Floats, Ints, make_law
from simulator.lookup.gemm_table import GemmPoints, way
from tests.unit.simulator.lookup.gemm_shapes import PARAMS, SMS, law_rows

LAW = make_law("tiled", PARAMS, SMS)
TABLE = np.array([(row.m, row.n, row.k, row.median_us) for row in law_rows()])
PLAIN, ADDING = (way(accumulate=adds, bias=False, strided=False) for adds in (False, True))


def points_of(table: Floats, ways: Ints | None = None, spread: float = 0.0) -> GemmPoints:
    if ways is None:
        ways = np.full(len(table), PLAIN)
    return GemmPoints(table[:, :3], table[:, 3], spread * table[:, 3], ways, LAW)


def bent(table: Floats, exponent: Floats) -> Floats:
    return np.concatenate([table[:, :3], (table[:, 3] * np.exp(exponent))[:, None]], axis=1)


def test_rows_on_the_law_change_nothing() -> None:
    us, error = points_of(TABLE).predict(777, 3000, 1111, PLAIN)
    assert us == pytest.approx(LAW.parts(777, 3000, 1111).total_us)
    assert 0 < error < 0.05


def test_a_trend_between_rows_is_learned() -> None:
    table = bent(TABLE, 0.1 * np.log(TABLE[:, 2] / 2048))
    expected = LAW.parts(512, 2048, 4096).total_us * np.exp(0.1 * np.log(2))
    assert points_of(table).predict(512, 2048, 4096, PLAIN)[0] == pytest.approx(expected, rel=0.02)


def test_another_way_of_writing_costs_what_its_own_rows_say() -> None:
    slower = bent(TABLE, np.full(len(TABLE), 0.2))
    ways = np.repeat([PLAIN, ADDING], len(TABLE))
    both = points_of(np.concatenate([TABLE, slower]), ways)
    law_us = LAW.parts(512, 2048, 4096).total_us
    assert both.predict(512, 2048, 4096, PLAIN)[0] == pytest.approx(law_us, rel=0.02)
    adding_us = both.predict(512, 2048, 4096, ADDING)[0]
    assert adding_us == pytest.approx(law_us * np.exp(0.2), rel=0.02)


def test_few_rows_of_one_way_profit_from_those_of_the_other() -> None:
    trend = 0.1 * np.log(TABLE[:, 2] / 2048)
    few = np.flatnonzero(TABLE[:, 1] == 512)[::4]
    adding = bent(TABLE, trend + 0.1)[few]
    ways = np.array([PLAIN] * len(TABLE) + [ADDING] * len(few))
    both = points_of(np.concatenate([bent(TABLE, trend), adding]), ways)
    for m, n, k, us in bent(TABLE, trend + 0.1)[TABLE[:, 1] == 8192]:
        found_us, _ = both.predict(int(m), int(n), int(k), ADDING)
        assert found_us == pytest.approx(us, rel=0.05)


def test_rows_that_scatter_are_believed_less() -> None:
    odd = bent(TABLE, np.where(np.arange(len(TABLE)) == 20, 0.3, 0.0))
    m, n, k = (int(size) for size in TABLE[20, :3])
    sure, unsure = (points_of(odd, spread=s).predict(m, n, k, PLAIN)[0] for s in (0.0, 0.2))
    assert TABLE[20, 3] < unsure < sure


def test_error_grows_with_the_distance_from_rows() -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, len(TABLE))
    points = points_of(bent(TABLE, noise))
    errors = [points.predict(1024, 2048, k, PLAIN)[1] for k in (2048, 3000, 65536)]
    assert errors == sorted(errors)
    assert errors[0] < errors[2]


def test_error_at_a_row_counts_its_neighbours_however_many_are_further_away() -> None:
    """More rows than are counted, of one (m, n): those around the first and around the last."""
    ks = np.unique(np.geomspace(32, 65536, 200).round())
    shapes = np.stack([np.full(len(ks), 1024.0), np.full(len(ks), 2048.0), ks], axis=1)
    table = np.column_stack([shapes, LAW.times_us(*shapes.T)])
    points = points_of(bent(table, np.random.default_rng(0).normal(0, 0.05, len(table))))
    inside = [points.predict(1024, 2048, int(k), PLAIN)[1] for k in (ks[0], ks[100], ks[-1])]
    beyond = points.predict(16, 64, 32, PLAIN)[1]
    assert max(inside) < 0.2 * beyond


def test_leaving_out_in_closed_form_is_leaving_out() -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, 2 * len(TABLE))
    table = bent(np.concatenate([TABLE, TABLE]), noise)
    ways = np.repeat([PLAIN, ADDING], len(TABLE))
    errors = []
    for shape in np.unique(TABLE[:, :3], axis=0):
        out = (table[:, :3] == shape).all(axis=1)
        others = GemmPoints(table[~out, :3], table[~out, 3], 0 * table[~out, 3], ways[~out], LAW)
        m, n, k = (int(size) for size in shape)
        errors += [
            abs(us / others.predict(m, n, k, int(wanted))[0] - 1)
            for us, wanted in zip(table[out, 3], ways[out], strict=True)
        ]
    # The mean of all rows is known to the closed form, and not to those that leave some out.
    assert points_of(table, ways).leave_out_error == pytest.approx(np.mean(errors), rel=0.05)


def test_the_order_of_rows_changes_nothing() -> None:
    noisy = bent(TABLE, np.random.default_rng(0).normal(0, 0.05, len(TABLE)))
    shuffled = noisy[np.random.default_rng(1).permutation(len(noisy))]
    shape = (300, 700, 900, PLAIN)
    assert points_of(noisy).predict(*shape) == points_of(shuffled).predict(*shape)


def test_one_row_is_enough() -> None:
    one = points_of(TABLE[:1])
    us, error = one.predict(1, 512, 512, PLAIN)
    assert us == pytest.approx(TABLE[0, 3])
    assert 0 < error < 0.02 < one.predict(4096, 8192, 8192, PLAIN)[1]
