"""Bursts: a link that was idle carries the beginning of a message at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.case import Case
from simulator.cost import Changes, CostModel
from simulator.draws import Draw
from simulator.errors import ProfileError
from simulator.link_burst import LONG_AGO_NS, LinkBurst, owed_ns
from simulator.lookup.collectives import CollectiveRow
from simulator.ops import Collective, Gemm
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import predict, simulate
from simulator.schedule import TP
from tests.simulator.cases import with_cost
from tests.simulator.test_skew import small_case

BUCKET = LinkBurst(burst_bytes=20_000, gb_s=0.1, error=0.2, samples=3)
BETWEEN = Collective("all_gather", 400_000, 2, 1)


def with_burst(burst: LinkBurst | None, **changes: Any) -> CostModel:
    profile = small_case().cost.profile
    assert profile.collectives is not None
    section = replace(profile.collectives, burst=burst)
    return CostModel(
        replace(profile, collectives=section), changes=Changes(**changes), cuda_graph=True
    )


def case_with(burst: LinkBurst | None) -> Case:
    """A small job whose tensor-parallel group spans two nodes."""
    case = small_case()
    split = replace(case, cluster=replace(case.cluster, ranks_per_node=case.cluster.tp // 2))
    return with_cost(split, with_burst(burst))


def test_a_bucket_saves_no_more_than_it_holds() -> None:
    assert [BUCKET.saved_us(sent) for sent in (0, 5_000, 20_000, 10**9)] == [0, 50, 200, 200]


def test_a_link_fills_its_bucket_while_it_idles() -> None:
    idle_ns = (0, 60_000, 200_000, 10**9, 5 - LONG_AGO_NS)
    assert [owed_ns(200_000, idle) for idle in idle_ns] == [200_000, 140_000, 0, 0, 0]


def test_what_is_saved_is_what_ranks_send_between_nodes() -> None:
    cost = with_burst(BUCKET)
    assert cost.saved_ns(BETWEEN) == 200_000  # each sends 200,000 bytes, more than the bucket holds
    assert cost.saved_ns(BETWEEN._replace(size_bytes=8_000)) == 40_000
    assert cost.saved_ns(BETWEEN._replace(size_bytes=8_000, op="all_reduce")) == 80_000
    assert cost.saved_ns(BETWEEN._replace(nodes=1, per_node=2)) == 0
    assert cost.saved_ns(Gemm(64, 64, 64)) == 0
    assert with_burst(None).saved_ns(BETWEEN) == 0
    assert with_burst(BUCKET, link_bandwidth=4.0).saved_ns(BETWEEN) == 50_000
    slower = cost.drawn(Draw(z={"collective_between_nodes": 1.0}))
    assert slower.saved_ns(BETWEEN) == 240_000


def test_collectives_behind_each_other_take_what_they_do_not_save() -> None:
    """In intra order a scatter of one slice is followed at once by the gather of the next."""
    plan = SlicePlan(row_slices=2, order="intra", wgrad="deferred")
    usual, bursts = (simulate(case_with(burst), plan) for burst in (None, BUCKET))
    spans = [(start, end) for _, start, end in usual.lane(TP)]
    longer = [
        (end - start) - (b - a)
        for (a, b), (_, start, end) in zip(spans, bursts.lane(TP), strict=True)
    ]
    assert longer[0] == 0  # nothing was sent before
    assert max(longer) > 0
    assert bursts.makespan_ns > usual.makespan_ns


def test_links_that_idle_for_long_save_all() -> None:
    """A Megatron's all-reduces have a block of compute between them."""
    bucket = replace(BUCKET, gb_s=1000.0)
    for plan in (MEGATRON, NO_COMM):
        assert predict(case_with(bucket), plan) == predict(case_with(None), plan)


def test_what_cannot_be_is_refused() -> None:
    for bad in ({"burst_bytes": 0}, {"gb_s": 0.0}, {"error": -1.0}, {"samples": 0}):
        with pytest.raises(ProfileError, match=r"collectives\.burst"):
            replace(BUCKET, **bad)
    with pytest.raises(ProfileError, match="behind_us"):
        CollectiveRow(op="all_gather", nodes=2, per_node=1, bytes=8, median_us=1.0, behind_us=-1.0)
