"""Compute alone and beside collectives, counted along the issue order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.contention import (
    CollectiveFamily,
    ComputeContention,
    ComputeFamily,
    ContentionFit,
    Slowdown,
)
from simulator.cost import CostModel
from simulator.profile import ContentionSection, SkewSection
from simulator.provenance import Provenance
from simulator.schedule import COMPUTE, DP, TP
from simulator.skew import SkewFit, SkewRow
from simulator.skew_count import SkewCount
from tests.unit.simulator.cases import bundled_profile

GEMM, MESSAGE = ComputeFamily("gemm"), CollectiveFamily(2, 1)
TOLD = Provenance(kind="assumed", source="a test")
ROWS = (SkewRow(1000.0, 1000.0),)
"""A wait as long as the compute before it."""


def counting(slower: float = 1.0, **skew: Any) -> SkewCount:
    """A count where a GEMM beside a collective takes ``slower`` times as long."""
    law = ContentionFit(
        sm_count=1, default_ctas=1,
        compute=(ComputeContention(family="gemm", sms_per_cta=0, factor=slower, error=0.0),),
        collective=Slowdown(factor=1.0, error=0.0), same_links=Slowdown(factor=1.0, error=0.0),
        other_links=Slowdown(factor=1.0, error=0.0),
    )  # fmt: skip
    fit = SkewFit(slowest_factor=1.0, error=0.0, **skew)
    profile = replace(
        bundled_profile(), skew=SkewSection(fit=fit, provenance=TOLD),
        contention=ContentionSection(fit=law, provenance=TOLD),
    )  # fmt: skip
    return SkewCount(CostModel(profile), 3)


def test_compute_beside_a_flight_counts_apart() -> None:
    """300 ns alone, a collective of 500 ns, 200 ns beside it."""
    count = counting(beside=ROWS)
    count.add(COMPUTE, 300, GEMM, ())
    assert count.counted.alone_ns == (300, 300, 300)
    assert count.add(TP, 500, MESSAGE, ()) == 0
    count.add(COMPUTE, 200, GEMM, ())
    assert (count.alone_ns[TP], count.beside_ns[TP]) == (0.0, 200.0)
    assert (count.alone_ns[DP], count.beside_ns[DP]) == (300.0, 200.0)
    assert count.add(TP, 500, MESSAGE, ()) == 200
    assert count.counted.beside_ns == (200, 0, 200)


def test_what_is_beside_counts_at_its_slowed_length() -> None:
    """Beside 500 ns of a collective, 250 ns of a GEMM that takes twice as long; 150 ns behind."""
    count = counting(slower=2.0, beside=ROWS)
    count.add(TP, 500, MESSAGE, ())
    count.add(COMPUTE, 400, GEMM, ())
    assert (count.alone_ns[TP], count.beside_ns[TP]) == (150.0, 500.0)


def test_what_compute_waited_for_has_landed() -> None:
    count = counting(beside=ROWS)
    for _ in range(2):
        count.add(TP, 500, MESSAGE, ())
    count.add(COMPUTE, 100, GEMM, [(TP, 1)])
    assert count.beside_ns[TP] == 100
    count.add(COMPUTE, 100, GEMM, [(TP, 0)])
    assert (count.alone_ns[TP], count.beside_ns[TP]) == (100, 100)
    assert count.state(()) == (None, None, None)


def test_both_parts_of_a_wait_add_up_as_roots_of_squares() -> None:
    count = counting(rows=ROWS, beside=ROWS)
    count.add(COMPUTE, 400, GEMM, ())
    count.add(DP, 300, MESSAGE, ())
    count.add(COMPUTE, 300, GEMM, ())
    assert count.add(TP, 500, MESSAGE, ()) == 500


@pytest.mark.parametrize("rows", [(), ROWS])
def test_without_rows_of_its_own_all_compute_counts_as_alone(rows: tuple[SkewRow, ...]) -> None:
    count = counting(rows=rows)
    count.add(TP, 500, MESSAGE, ())
    count.add(COMPUTE, 200, GEMM, ())
    assert (count.alone_ns[TP], count.beside_ns[TP]) == (200.0, 0.0)
    before = count.counted
    count.add(COMPUTE, 100, GEMM, ())
    count.repeat(before, 7, [TP])
    assert count.add(TP, 500, MESSAGE, ()) == (1000 if rows else 0)
