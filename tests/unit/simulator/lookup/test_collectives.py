"""Collective times: rows, laws, and groups that nobody timed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import MissingSectionError, ProfileError
from simulator.lookup.collective_law import CollectiveFit
from simulator.lookup.collectives import CollectiveRow, CollectiveTable
from simulator.ops import Collective, CollectiveKind

MIB = 1 << 20


def row(size: int, us: float, **changes: Any) -> CollectiveRow:
    values: dict[str, Any] = {"op": "all_reduce", "nodes": 1, "per_node": 8}
    return CollectiveRow(**{**values, "bytes": size, "median_us": us, **changes})


def fit(nodes: int = 1, per_node: int = 8, latency: float = 10.0, **changes: Any) -> CollectiveFit:
    values: dict[str, Any] = {
        "op": "all_reduce", "knots_bytes": (MIB,), "us_per_mib": (20.0, 5.0),
        "min_bytes": 512, "max_bytes": 512 * MIB, "error": 0.02,
    }  # fmt: skip
    values |= {"nodes": nodes, "per_node": per_node, "latency_us": latency} | changes
    return CollectiveFit(**values)


def all_reduce(size: int, nodes: int = 1, per_node: int = 8, ctas: int = 0) -> Collective:
    return Collective("all_reduce", size, nodes, per_node, ctas)


def test_a_row_is_measured_and_between_rows_runs_the_line_through_both() -> None:
    table = CollectiveTable([row(MIB, 20.0), row(3 * MIB, 40.0)])
    assert table.estimate(all_reduce(MIB))[:2] == (20.0, "measured")
    assert table.estimate(all_reduce(2 * MIB))[:2] == (30.0, "interpolated")


@pytest.mark.parametrize(
    ("size", "source"), [(6 * MIB, "interpolated"), (12 * MIB, "extrapolated"), (1, "extrapolated")]
)
def test_twice_beyond_the_rows_is_extrapolated(size: int, source: str) -> None:
    table = CollectiveTable([row(MIB, 20.0), row(3 * MIB, 40.0)])
    assert table.estimate(all_reduce(size)).source == source


def test_far_below_rows_the_smallest_row_stands() -> None:
    table = CollectiveTable([row(MIB, 20.0), row(3 * MIB, 40.0)])
    assert table.estimate(all_reduce(4)).duration_us == 20.0


def test_a_law_adds_up_its_segments() -> None:
    table = CollectiveTable(fits=[fit()])
    assert table.estimate(all_reduce(3 * MIB))[:2] == (10.0 + 20.0 + 2 * 5.0, "fitted")
    assert table.shares(all_reduce(3 * MIB)) == (10.0, 30.0)
    assert table.estimate(all_reduce(2048 * MIB)).source == "extrapolated"


def test_rows_win_over_the_law_of_the_same_group() -> None:
    table = CollectiveTable([row(MIB, 99.0)], [fit()])
    assert table.estimate(all_reduce(MIB)).duration_us == 99.0


def test_one_rank_costs_nothing() -> None:
    assert CollectiveTable().estimate(all_reduce(MIB, 1, 1)).duration_us == 0.0


def test_groups_between_known_ones_lie_between_them() -> None:
    table = CollectiveTable(fits=[fit(2, latency=20.0), fit(8, latency=40.0)])
    middle = table.estimate(all_reduce(512, nodes=4))
    assert middle.source == "extrapolated"
    assert 20.0 < middle.duration_us < 41.0


def test_ranks_outside_the_known_ones_never_become_free() -> None:
    falling = [fit(per_node=4, latency=40.0), fit(per_node=8, latency=10.0)]
    assert CollectiveTable(fits=falling).estimate(all_reduce(512, per_node=64)).duration_us > 0


def test_nodes_that_nobody_timed_follow_the_nics() -> None:
    table = CollectiveTable(fits=[fit()], nic_gb_s=40.0, nic_latency_us=10.0)
    law = table.estimate(all_reduce(400_000_000, nodes=2, per_node=1))
    assert law.source == "assumed"
    assert law.duration_us == pytest.approx(10.0 + 400e6 / 40e3)


@pytest.mark.parametrize(
    ("op", "more_us"),
    [("all_reduce", 25_000), ("all_gather", 1_562.5), ("reduce_scatter", 1_562.5),
     ("all_to_all", 100_000)],
)  # fmt: skip
def test_bytes_through_the_nics(op: CollectiveKind, more_us: float) -> None:
    """400 MB at 1 GB/s: of 4 nodes 3/4 leave a node, of 2 half. 8 NICs share it, twice for an
    all-reduce; in an all-to-all each rank sends its own tensor. Gathers and scatters are rings: 32
    ranks pass on 31/32, and 16 pass on 15/16. A doubling costs 10 µs."""
    table = CollectiveTable(fits=[fit()], nic_gb_s=1.0, nic_latency_us=10.0)
    two, four = (table.estimate(Collective(op, 400_000_000, nodes, 8)) for nodes in (2, 4))
    assert four.duration_us - two.duration_us == pytest.approx(more_us + 10)


def test_a_gather_is_half_an_all_reduce_where_it_was_not_timed() -> None:
    table = CollectiveTable(fits=[fit()])
    gather = table.estimate(Collective("all_gather", 4 * MIB, 1, 8))
    assert gather.duration_us == table.estimate(all_reduce(4 * MIB)).duration_us / 2
    assert gather.source == "assumed"
    assert table.estimate(Collective("broadcast", 4 * MIB, 1, 8)).source == "assumed"


def test_unknown_ctas_name_those_that_were_timed() -> None:
    table = CollectiveTable(fits=[fit(), fit(ctas=4), fit(ctas=16)])
    with pytest.raises(MissingSectionError, match=r"comm_ctas in \[0, 4, 16\], got 8"):
        table.estimate(all_reduce(MIB, ctas=8))


def test_nothing_known_says_what_there_is() -> None:
    with pytest.raises(MissingSectionError, match="all_reduce 1×8"):
        CollectiveTable(fits=[fit()]).estimate(all_reduce(MIB, nodes=2))


@given(st.lists(st.integers(1, 1 << 32), min_size=2, max_size=2))
def test_more_bytes_never_take_less_time(sizes: list[int]) -> None:
    table = CollectiveTable(fits=[fit(), fit(2), fit(4)], nic_gb_s=40.0, nic_latency_us=10.0)
    small, large = sorted(sizes)
    for nodes, ranks in itertools.product((1, 2, 3), (1, 5, 8)):
        low, high = (table.estimate(all_reduce(s, nodes, ranks)) for s in (small, large))
        assert low.duration_us <= high.duration_us


@pytest.mark.parametrize(
    "changes",
    [
        {"us_per_mib": (1.0,)},
        {"us_per_mib": (1.0, float("nan"))},
        {"us_per_mib": (1.0, -1.0)},
        {"latency_us": 0.0},
        {"latency_us": float("inf")},
        {"knots_bytes": (MIB, MIB), "us_per_mib": (1.0, 1.0, 1.0)},
        {"min_bytes": 4, "max_bytes": 2},
        {"op": "gossip"},
        {"ctas": -1},
    ],
)
def test_impossible_laws_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProfileError):
        fit(**changes)


@pytest.mark.parametrize("changes", [{"median_us": -1.0}, {"bytes": 0}, {"samples": 0}])
def test_impossible_rows_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProfileError):
        row(MIB, 1.0, **changes)


def test_one_known_group_serves_others_by_assumption() -> None:
    table = CollectiveTable(fits=[fit()])
    pair = table.estimate(all_reduce(64 * MIB, per_node=2))
    assert pair.source == "assumed"
    assert 0.4 < pair.duration_us / table.estimate(all_reduce(64 * MIB)).duration_us < 0.7
