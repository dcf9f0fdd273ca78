"""Meetings of a collective and ops: what is played, and what their stamps show."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from domino_tune.measure.gpu import (  # fmt: skip
    CALLS,
    COLLECTIVE_NS,
    CTAS,
    LEAD_NS,
    RATES,
    Encounter,
    Meeting,
    first_works,
    meeting,
    moved_bytes,
    waited_share,
    works,
)
from domino_tune.runtime.lanes import BLOCKS, Chunks, Pace


def test_a_meeting_counts_from_the_arrival() -> None:
    zero = 1_764_000_000_000_000_000  # ns; a float lacks digits for it
    stamps = [(zero + 1_101, zero + 2_000), (zero + 1_500, zero + 2_600)]
    found = meeting(stamps, zero, 1_000, [300.0, 310.0])
    assert found == Meeting(101, 500, 1_600, 1_000, (300.0, 310.0))


def test_collectives_arrive_after_the_beginning_or_in_the_middle() -> None:
    behind, within, idle = (
        Encounter(print, 80_000.0, 4, 6.0, name) for name in ("behind", "within", "idle later")
    )
    assert (behind.later_ns, within.later_ns, idle.later_ns) == (LEAD_NS, 40_000, LEAD_NS)
    assert (behind.calls, idle.calls) == (CALLS, 0)


def test_collectives_take_too_many_registers_to_share_an_sm_with_a_gemm() -> None:
    """The kernel of the largest blocks; with fewer elements a CTA takes another one."""
    for rate in RATES:
        for ctas in CTAS:
            chunks = Chunks.of(moved_bytes(ctas, rate), Pace(COLLECTIVE_NS, ctas))
            assert chunks.block == max(BLOCKS)


def test_a_wait_is_told_as_a_share_of_what_was_left() -> None:
    found = [Meeting(0, all_in, 0, 50_000, ()) for all_in in (5_000, 40_000, 50_000)]
    assert waited_share(found, 100_000.0) == 0.8
    assert waited_share(found, 50_000.0) == 40_000  # it arrived at the end: nothing was left


def test_every_family_is_met_and_loaded_with_one_op_of_each_name() -> None:
    first = first_works()
    assert {(one.family, one.name) for one in works()} == {(one.family, one.name) for one in first}
    assert len(first) == 8
