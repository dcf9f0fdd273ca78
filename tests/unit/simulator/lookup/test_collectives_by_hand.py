"""Collectives at points that are computed by hand: rows, ranges, siblings, other groups, wires."""

from __future__ import annotations

from math import log2
from typing import Any

import pytest

from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup import expected
from simulator.lookup.collective_law import CollectiveFit
from simulator.lookup.collectives import CollectiveRow, CollectiveTable
from simulator.ops import Collective, CollectiveKind
from tests.unit.simulator.near import near

MIB = 1 << 20


def row(size: int, us: float, **changes: Any) -> CollectiveRow:
    values: dict[str, Any] = {"op": "all_reduce", "nodes": 1, "per_node": 8}
    return CollectiveRow(**{**values, "bytes": size, "median_us": us, **changes})


def fit(nodes: int = 1, per_node: int = 8, latency: float = 10.0, **changes: Any) -> CollectiveFit:
    """10 µs, then 20 µs for each of two MiB, then 5 for each of three, then 1."""
    values: dict[str, Any] = {
        "op": "all_reduce", "knots_bytes": (2 * MIB, 5 * MIB), "us_per_mib": (20.0, 5.0, 1.0),
        "min_bytes": 512, "max_bytes": 512 * MIB, "error": 0.02, "nodes": nodes,
        "per_node": per_node, "latency_us": latency,
    }  # fmt: skip
    return CollectiveFit(**(values | changes))


def asked(
    size: int, nodes: int = 1, per_node: int = 8, op: CollectiveKind = "all_reduce"
) -> Collective:
    return Collective(op, size, nodes, per_node)


@pytest.mark.parametrize(
    ("mib", "transfer"), [(1, 20.0), (2, 40.0), (3, 45.0), (5, 55.0), (9, 59.0)]
)
def test_a_law_is_linear_between_its_knots(mib: int, transfer: float) -> None:
    table = CollectiveTable(fits=[fit()])
    assert table.shares(asked(mib * MIB)) == pytest.approx((10.0, transfer))
    assert table.estimate(asked(mib * MIB)) == (10.0 + transfer, "fitted", 0.02)


def test_timings_that_reach_latency_alone_serve_all_small_messages() -> None:
    """16 KiB is latency; 32 KiB is not, and 8 KiB is as far below as is trusted."""
    low = CollectiveTable(fits=[fit(min_bytes=16 << 10)])
    assert low.estimate(asked(1)).source == "fitted"
    high = CollectiveTable(fits=[fit(min_bytes=(16 << 10) + 2)])
    assert high.estimate(asked((8 << 10) + 1)).source == "fitted"
    assert high.estimate(asked(8 << 10)).source == "extrapolated"


def test_between_rows_latency_is_the_smallest_rows() -> None:
    table = CollectiveTable([row(MIB, 20.0), row(3 * MIB, 40.0), row(5 * MIB, 90.0)])
    assert table.shares(asked(MIB)) == (20.0, 0.0)
    assert table.shares(asked(2 * MIB)) == pytest.approx((20.0, 10.0))
    assert table.shares(asked(4 * MIB)) == pytest.approx((20.0, 45.0))
    assert table.shares(asked(5 * MIB)) == pytest.approx((20.0, 70.0))
    assert table.shares(asked(7 * MIB)) == pytest.approx((20.0, 120.0))
    assert table.estimate(asked(4 * MIB)) == near(65.0, "interpolated", 0.05)


def test_beyond_falling_rows_time_does_not_fall() -> None:
    table = CollectiveTable([row(MIB, 40.0), row(2 * MIB, 30.0)])
    assert table.estimate(asked(3 * MIB)).duration_us == 30.0
    assert table.shares(asked(2 * MIB)) == (30.0, 0.0)
    assert table.shares(asked(3 * MIB // 2)) == pytest.approx((35.0, 0.0))


def test_one_row_is_proportional_above_itself() -> None:
    table = CollectiveTable([row(MIB, 40.0)])
    assert table.shares(asked(3 * MIB)) == pytest.approx((40.0, 80.0))
    assert table.shares(asked(MIB // 2)) == (40.0, 0.0)
    assert table.estimate(asked(4 * MIB)) == near(160.0, "extrapolated", 0.2)


def test_siblings_of_an_all_reduce() -> None:
    """Gather and scatter are its halves; a broadcast sends 8/7 of a gather."""
    table = CollectiveTable(fits=[fit()])
    whole = table.estimate(asked(3 * MIB)).duration_us
    half, related = expected.COLLECTIVE_HALF.error, expected.COLLECTIVE_RELATED.error
    for op, share, error in (
        ("all_gather", 1 / 2, half), ("reduce_scatter", 1 / 2, half),
        ("broadcast", 4 / 7, max(half, related)),
    ):  # fmt: skip
        found = table.estimate(asked(3 * MIB, op=op))  # type: ignore[arg-type]
        assert found == near(share * whole, "assumed", error)
    unsure = CollectiveTable(fits=[fit(error=2.0)])
    assert unsure.estimate(asked(MIB, op="all_gather")).error == 2.0
    assert unsure.estimate(asked(MIB, op="broadcast")).error == 2.0


@pytest.mark.parametrize(("nodes", "pair"), [(1, (1, 2)), (2, (2, 1))])
def test_to_send_is_to_gather_twice_the_bytes_in_a_pair(nodes: int, pair: tuple[int, int]) -> None:
    known = fit(*pair, op="all_gather")
    table = CollectiveTable(fits=[known, fit(3 - nodes, nodes, 99.0, op="all_gather")])
    found = table.estimate(asked(MIB, nodes=nodes, op="send_recv"))
    assert found == (10.0 + 40.0, "assumed", expected.COLLECTIVE_RELATED.error)


@pytest.mark.parametrize(
    ("nodes", "latency", "transfer", "errors"),
    [(4, 30.0, 40.0, 1), (16, 50.0, 60.0, 2), (32, 60.0, 70.0, 3), (3, None, None, 1)],
)
def test_between_known_groups_runs_a_line_over_the_doublings(
    nodes: int, latency: float | None, transfer: float | None, errors: int
) -> None:
    """From 2 to 8 nodes are two doublings; the transfer of 1 MiB goes from 30 to 50."""
    slow = {"knots_bytes": (), "us_per_mib": (50.0,)}
    table = CollectiveTable(
        fits=[fit(2, 8, 20.0, knots_bytes=(), us_per_mib=(30.0,)), fit(8, 8, 40.0, **slow)]
    )
    doublings = log2(nodes / 2)
    found = table.estimate(asked(MIB, nodes=nodes))
    assert found[1:] == near("extrapolated", errors * expected.COLLECTIVE_GROUPS.error)
    assert table.shares(asked(MIB, nodes=nodes)) == pytest.approx(
        (latency or 20 + 10 * doublings, transfer or 30 + 10 * doublings)
    )


def test_inside_a_node_the_line_runs_over_its_ranks() -> None:
    table = CollectiveTable(fits=[fit(1, 2, 10.0), fit(1, 4, 16.0), fit(1, 8, 20.0), fit(2, 8)])
    assert table.shares(asked(MIB, per_node=6))[0] == pytest.approx(16 + 4 * log2(1.5))
    assert table.shares(asked(MIB, per_node=3))[0] == pytest.approx(10 + 6 * log2(1.5))
    assert table.shares(asked(MIB, per_node=16))[0] == pytest.approx(24.0)


def test_outside_the_known_groups_the_nearest_two_make_the_line() -> None:
    table = CollectiveTable(fits=[fit(1, 4, 16.0), fit(1, 8, 20.0), fit(1, 16, 40.0)])
    assert table.shares(asked(MIB, per_node=2))[0] == pytest.approx(12.0)
    assert table.shares(asked(MIB, per_node=32))[0] == pytest.approx(60.0)


def test_what_falls_from_group_to_group_keeps_half() -> None:
    flat = {"knots_bytes": (), "us_per_mib": (10.0,)}
    steep = {"knots_bytes": (), "us_per_mib": (1.0,)}
    table = CollectiveTable(fits=[fit(1, 4, 40.0, **flat), fit(1, 8, 10.0, **steep)])
    assert table.shares(asked(MIB, per_node=64)) == pytest.approx((20.0, 5.0))


def test_one_group_is_scaled_by_steps_and_by_the_rings_bytes() -> None:
    """From 8 to 2 ranks: a third of the doublings, and 1/2 instead of 7/8 of the bytes."""
    table = CollectiveTable(fits=[fit()])
    assert table.shares(asked(MIB, per_node=2)) == pytest.approx((10 / 3, 20 * (1 / 2) / (7 / 8)))
    assert table.estimate(asked(MIB, per_node=2))[1:] == (
        "assumed", expected.COLLECTIVE_ONE_GROUP.error,
    )  # fmt: skip

    nodes = CollectiveTable(fits=[fit(2, 8)])
    assert nodes.shares(asked(MIB, 4)) == pytest.approx((10 * 5 / 4, 20 * (31 / 32) / (15 / 16)))


def test_wires_carry_the_ring_between_nodes() -> None:
    """Four nodes: two NIC latencies more, and 2·3/4 of a rank's eighth through its 40 GB/s; of a
    gather 31/32, since its ring passes through all ranks."""
    slow = fit(knots_bytes=(), us_per_mib=(0.01,))
    table = CollectiveTable(fits=[slow], nic_gb_s=40.0, nic_latency_us=7.0)
    size = 64 * MIB
    wire = 2 * 3 / 4 * size / 8 / 40e3
    assert table.shares(asked(size, 4)) == pytest.approx((10 + 2 * 7, wire))
    assert table.estimate(asked(size, 4))[1:] == (
        "assumed", expected.COLLECTIVE_WIRES.error,
    )  # fmt: skip

    gather = table.shares(asked(size, 4, op="all_gather"))
    assert gather == pytest.approx((5 + 2 * 7, 31 / 32 * size / 8 / 40e3))
    inside = CollectiveTable(fits=[fit()], nic_gb_s=4e6, nic_latency_us=7.0)
    assert inside.shares(asked(MIB, 4)) == pytest.approx((24.0, 20.0))


def test_wires_need_both_numbers() -> None:
    for numbers in ({"nic_gb_s": 40.0}, {"nic_latency_us": 7.0}):
        with pytest.raises(MissingSectionError, match="all_reduce 1×8"):
            CollectiveTable(fits=[fit()], **numbers).estimate(asked(MIB, 2))  # type: ignore[arg-type]


def test_groups_are_listed_once() -> None:
    table = CollectiveTable([row(MIB, 1.0)], [fit(), fit(2, 4, ctas=3)])
    assert table.groups() == [("all_reduce", 1, 8, 0), ("all_reduce", 2, 4, 3)]


def test_a_law_may_be_of_one_size() -> None:
    assert fit(min_bytes=512, max_bytes=512).max_bytes == 512
    with pytest.raises(ProfileError, match="min_bytes is above max_bytes"):
        fit(min_bytes=513, max_bytes=512)


def test_an_op_on_one_rank_is_free() -> None:
    assert CollectiveTable().estimate(asked(MIB, 1, 1)) == (0.0, "measured", 0.0)


def test_between_assumed_groups_is_assumed() -> None:
    laws = [fit(per_node=2), fit(per_node=8, kind="assumed", error=0.5)]
    found = CollectiveTable(fits=laws).estimate(asked(MIB, 1, 4))
    assert (found.source, found.error) == ("assumed", 0.5)
