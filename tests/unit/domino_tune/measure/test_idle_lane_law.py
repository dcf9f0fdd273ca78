"""A link's bucket and the time of waking are found again in collectives that follow them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from domino_tune.measure.idle_lane_law import idle_lane_law
from simulator.cpu_hosts import IdleLane
from simulator.lookup.collectives import CollectiveRow
from simulator.ops import Collective

SIZES = (4, 3_000, 28_672, 49_152, 98_304, 393_216, 1_572_864)
LAW = IdleLane(burst_bytes=23_170, burst_us=230.0, wake_us=90.0, error=0.1, samples=1)


def rows(law: IdleLane, nodes: int = 2) -> list[CollectiveRow]:
    """Gathers and scatters; a larger one is timed less well."""
    rng, found = random.Random(3), []
    for op in ("all_gather", "reduce_scatter"):
        for size in SIZES:
            sent = Collective(op, size, nodes, 2 // nodes).bus_bytes
            saved = law.saved_us(sent) if nodes > 1 else 0.0
            spread = 5 + size / 30_000
            median = 100 + law.wake_us + sent / 60
            found.append(
                CollectiveRow(
                    op=op, nodes=nodes, per_node=2 // nodes, bytes=size, median_us=median,
                    spread_us=spread, samples=10,
                    behind_us=median + saved - law.wake_us + rng.uniform(-spread, spread),
                )
            )  # fmt: skip
    return found


def test_the_law_is_found() -> None:
    law = idle_lane_law(rows(LAW))
    assert law is not None
    assert law.burst_bytes == pytest.approx(LAW.burst_bytes, rel=0.2)
    assert law.burst_us == pytest.approx(LAW.burst_us, rel=0.1)
    assert law.wake_us == pytest.approx(LAW.wake_us, rel=0.15)
    assert 0 < law.error < 0.1
    assert law.samples == 10 * 2 * len(SIZES)


@pytest.mark.parametrize(("burst_us", "wake_us"), [(230.0, 0.0), (0.0, 90.0)])
def test_one_of_both_may_be_nothing(burst_us: float, wake_us: float) -> None:
    law = idle_lane_law(rows(replace(LAW, burst_us=burst_us, wake_us=wake_us)))
    assert law is not None
    assert law.burst_us == pytest.approx(burst_us, abs=25)
    assert law.wake_us == pytest.approx(wake_us, abs=25)


def test_links_inside_a_node_have_no_bucket() -> None:
    law = idle_lane_law(rows(LAW, nodes=1))
    assert law is not None
    assert law.burst_us == 0
    assert law.wake_us == pytest.approx(LAW.wake_us, rel=0.1)


def test_where_it_makes_no_difference_there_is_no_law() -> None:
    assert idle_lane_law(rows(replace(LAW, burst_us=0.0, wake_us=0.0))) is None
    assert idle_lane_law([]) is None
    plain = CollectiveRow(op="all_gather", nodes=2, per_node=1, bytes=8, median_us=1.0)
    assert idle_lane_law([plain]) is None
