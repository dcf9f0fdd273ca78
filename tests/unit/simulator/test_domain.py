"""NVLink domains of several nodes: groups lie in them, and only beyond is the network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import place
from simulator.errors import InputError, ProfileError
from simulator.specs import ClusterSpec

RACK = load_profile("gb200-nvl72")


def placed(nodes: int | None = None, *, tp: int, dp: int, pp: int = 1) -> ClusterSpec:
    """Return the ranks on nodes of the rack."""
    return place(ClusterSpec(ranks_per_node=2**30, tp=tp, dp=dp, pp=pp), RACK, nodes)


def test_a_group_over_nodes_of_a_rack_is_in_one_domain() -> None:
    cluster = placed(tp=16, dp=4)
    assert (cluster.nodes, cluster.domains, cluster.domain) == (16, 1, 64)
    assert (cluster.tp_group, cluster.dp_group, cluster.world_group) == ((1, 16), (1, 4), (1, 64))


def test_beyond_a_rack_groups_use_the_network() -> None:
    cluster = placed(tp=8, dp=8, pp=4)
    assert (cluster.nodes, cluster.domains, cluster.domain) == (64, 4, 64)
    assert cluster.tp_group == (1, 8)
    assert [cluster.p2p_group(stage) for stage in range(4)] == [(2, 1)] * 4
    assert placed(tp=8, dp=32).dp_group == (4, 8)


def test_a_rack_is_filled_as_far_as_groups_divide_it() -> None:
    assert placed(tp=8, dp=18).domain == 72
    assert placed(tp=16, dp=36).domain == 64  # 72 is no multiple of 16
    assert placed(tp=2, dp=2).domain == 4  # one node
    assert placed(tp=4, dp=6, nodes=12).domain == 24  # two ranks on each node


def test_a_node_is_a_domain_where_nothing_else_is_said() -> None:
    cluster = place(ClusterSpec(tp=8, dp=4), load_profile("h100-dgx"), None)
    assert (cluster.ranks_per_domain, cluster.domain, cluster.domains) == (0, 8, 4)


def test_a_domain_has_whole_nodes() -> None:
    with pytest.raises(InputError, match="multiple of ranks_per_node = 4, got 6"):
        ClusterSpec(tp=1, ranks_per_node=4, ranks_per_domain=6)
    with pytest.raises(InputError, match="ranks per NVLink domain"):
        ClusterSpec(tp=16, dp=9, ranks_per_node=4, ranks_per_domain=72)
    with pytest.raises(ProfileError, match="whole nodes of 4 GPUs, got 6"):
        replace(RACK.machine, gpus_per_domain=6)
