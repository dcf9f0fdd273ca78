"""A lane that idled: its link carries the beginning of a message at once, its thread wakes up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.case import Case
from simulator.cost import CostModel, Factors
from simulator.cpu_hosts import LONG_AGO_NS, NO_TIMES, IdleLane, IdleTimes
from simulator.draws import Draw
from simulator.errors import ProfileError
from simulator.lookup.collectives import CollectiveRow
from simulator.ops import Collective, Gemm
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import predict, simulate
from simulator.schedule import TP
from tests.unit.simulator.cases import with_cost
from tests.unit.simulator.test_skew import small_case

BUCKET = IdleLane(burst_bytes=20_000, burst_us=200.0, wake_us=0.0, error=0.2, samples=3)
WAKING = replace(BUCKET, burst_us=0.0, wake_us=5.0)
BETWEEN = Collective("all_gather", 400_000, 2, 1)


def with_law(law: IdleLane | None, **changes: Any) -> CostModel:
    profile = small_case().cost.profile
    assert profile.collectives is not None
    section = replace(profile.collectives, idle_lane=law)
    return CostModel(
        replace(profile, collectives=section), factors=Factors(**changes), cuda_graph=True
    )


def case_with(law: IdleLane | None) -> Case:
    """A small job whose tensor-parallel group spans two nodes, and nothing slows anything."""
    case = small_case()
    split = replace(case, cluster=replace(case.cluster, ranks_per_node=case.cluster.tp // 2))
    return with_cost(split, with_law(law, contention=0.0))


def test_a_bucket_saves_no_more_than_it_holds() -> None:
    assert [BUCKET.saved_us(sent) for sent in (0, 5_000, 20_000, 10**9)] == [0, 50, 200, 200]


def test_a_link_fills_its_bucket_while_it_idles() -> None:
    idle_ns = (0, 60_000, 200_000, 10**9, 5 - LONG_AGO_NS)
    assert [IdleTimes(200_000, 0).more_ns(idle) for idle in idle_ns] == [200_000, 140_000, 0, 0, 0]


def test_waking_takes_no_longer_than_a_lane_slept() -> None:
    idle_ns = (0, 10_000, 30_000, 5 - LONG_AGO_NS)
    assert [IdleTimes(0, 30_000).more_ns(idle) for idle in idle_ns] == [0, 10_000, 30_000, 30_000]
    both = IdleTimes(20_000, 30_000)
    assert [both.more_ns(idle) for idle in idle_ns] == [20_000, 20_000, 30_000, 30_000]


@pytest.mark.parametrize("times", [(0, 0), (7, 0), (0, 7), (7, 3), (3, 7), (5, 5)])
def test_the_least_holds_however_long_a_lane_idled(times: tuple[int, int]) -> None:
    both = IdleTimes(*times)
    assert both.least_ns == min(both.more_ns(idle_ns) for idle_ns in range(12))


def test_what_is_saved_is_what_ranks_send_between_nodes() -> None:
    cost = with_law(BUCKET)
    small = BETWEEN._replace(size_bytes=8_000)
    assert cost.idle_times(BETWEEN) == (200_000, 0)  # each sends more than the bucket holds
    assert cost.idle_times(small) == (40_000, 0)
    assert cost.idle_times(small._replace(op="all_reduce")) == (80_000, 0)
    assert cost.idle_times(BETWEEN._replace(nodes=1, per_node=2)) == NO_TIMES
    assert cost.idle_times(Gemm(64, 64, 64)) == NO_TIMES
    assert with_law(None).idle_times(BETWEEN) == NO_TIMES
    assert with_law(BUCKET, link_bandwidth=4.0).idle_times(BETWEEN) == (50_000, 0)
    slower = cost.drawn(Draw(z={"collective_between_nodes": 1.0}))
    assert slower.idle_times(BETWEEN) == (240_000, 0)
    calibrated = slower.drawn(Draw(factors={"collective_between_nodes": 1.5}))
    assert calibrated.idle_times(BETWEEN) == (360_000, 0)


def test_waking_is_a_part_of_the_duration() -> None:
    cost = with_law(WAKING)
    for signature in (BETWEEN, BETWEEN._replace(nodes=1, per_node=2)):
        assert cost.idle_times(signature) == (0, 5_000)
        assert cost.awake_ns(signature) == cost.duration_ns(signature) - 5_000
        assert cost.duration_ns(signature) == with_law(None).duration_ns(signature)
    assert cost.awake_ns(Gemm(64, 64, 64)) == cost.duration_ns(Gemm(64, 64, 64))
    assert with_law(WAKING, link_latency=2.0).idle_times(BETWEEN) == (0, 10_000)
    long = with_law(replace(WAKING, wake_us=1e6))
    assert long.awake_ns(BETWEEN) == 1


def test_bounds_take_the_least_of_both() -> None:
    cost = with_law(replace(BUCKET, wake_us=5.0))
    assert cost.least_ns(BETWEEN) == cost.duration_ns(BETWEEN)
    assert with_law(BUCKET).least_ns(BETWEEN) == cost.duration_ns(BETWEEN)
    assert with_law(WAKING).least_ns(BETWEEN) == cost.duration_ns(BETWEEN) - 5_000


def test_collectives_behind_each_other_take_what_they_do_not_save() -> None:
    """In intra order a scatter of one slice is followed at once by the gather of the next."""
    plan = SlicePlan(row_slices=2, order="intra", wgrad="deferred")
    usual, bursts = (simulate(case_with(law), plan) for law in (None, BUCKET))
    spans = [(start, end) for _, start, end in usual.lane(TP)]
    longer = [
        (end - start) - (b - a)
        for (a, b), (_, start, end) in zip(spans, bursts.lane(TP), strict=True)
    ]
    assert longer[0] == 0  # nothing was sent before
    assert max(longer) > 0
    assert bursts.makespan_ns > usual.makespan_ns


def test_an_awake_lane_goes_on_sooner() -> None:
    """In intra order a scatter of one slice is followed at once by the gather of the next."""
    plan = SlicePlan(row_slices=2, order="intra", wgrad="deferred")
    usual, awake = (simulate(case_with(law), plan) for law in (None, WAKING))
    spans = zip(usual.lane(TP), awake.lane(TP), strict=True)
    shorter = [(end - start) - (b - a) for (_, start, end), (_, a, b) in spans]
    assert shorter[0] == 0
    assert max(shorter) == 5_000
    assert awake.makespan_ns < usual.makespan_ns


def test_lanes_that_idle_for_long_save_and_pay_all() -> None:
    """A Megatron's all-reduces have a block of compute between them."""
    law = replace(BUCKET, burst_us=0.02, wake_us=0.03)
    for plan in (MEGATRON, NO_COMM):
        assert predict(case_with(law), plan) == predict(case_with(None), plan)


def test_what_cannot_be_is_refused() -> None:
    for bad in (
        {"burst_bytes": 0}, {"burst_us": -1.0}, {"wake_us": -1.0}, {"error": -1.0}, {"samples": 0},
    ):  # fmt: skip
        with pytest.raises(ProfileError, match=r"collectives\.idle_lane"):
            replace(BUCKET, **bad)
    with pytest.raises(ProfileError, match="behind_us"):
        CollectiveRow(op="all_gather", nodes=2, per_node=1, bytes=8, median_us=1.0, behind_us=-1.0)
