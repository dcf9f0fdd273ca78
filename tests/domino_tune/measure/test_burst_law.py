"""The bucket of a link is found again in collectives that follow it."""

from __future__ import annotations

import random

import pytest

from domino_tune.measure.burst_law import burst_law
from simulator.link_burst import LinkBurst
from simulator.lookup.collectives import CollectiveRow
from simulator.ops import Collective

SIZES = (4, 3_000, 28_672, 49_152, 98_304, 393_216, 1_572_864)
BUCKET = LinkBurst(burst_bytes=23_170, gb_s=0.1, error=0.1, samples=1)


def rows(bucket: LinkBurst | None, nodes: int = 2, off_us: float = 0.0) -> list[CollectiveRow]:
    """Gathers and scatters; a larger one is timed less well."""
    rng, found = random.Random(3), []
    for op in ("all_gather", "reduce_scatter"):
        for size in SIZES:
            sent = Collective(op, size, nodes, 2 // nodes).bus_bytes
            saved = bucket.saved_us(sent) if bucket else 0.0
            spread = 5 + size / 30_000
            median = 100 + sent / 60
            found.append(
                CollectiveRow(
                    op=op, nodes=nodes, per_node=2 // nodes, bytes=size, median_us=median,
                    spread_us=spread, samples=10,
                    behind_us=median + saved + off_us + rng.uniform(-spread, spread),
                )
            )  # fmt: skip
    return found


def test_the_bucket_is_found() -> None:
    law = burst_law(rows(BUCKET))
    assert law is not None
    assert law.burst_bytes == pytest.approx(BUCKET.burst_bytes, rel=0.2)
    assert law.saved_us(10**6) == pytest.approx(BUCKET.saved_us(10**6), rel=0.1)
    assert 0 < law.error < 0.1
    assert law.samples == 10 * 2 * len(SIZES)


@pytest.mark.parametrize("off_us", [0.0, -40.0])
def test_a_link_that_saves_nothing_has_no_law(off_us: float) -> None:
    """A collective right behind another one may be faster: its thread is awake."""
    assert burst_law(rows(None, off_us=off_us)) is None


def test_links_inside_a_node_have_none() -> None:
    assert burst_law(rows(BUCKET, nodes=1)) is None
    assert burst_law([]) is None
    plain = CollectiveRow(op="all_gather", nodes=2, per_node=1, bytes=8, median_us=1.0)
    assert burst_law([plain]) is None
