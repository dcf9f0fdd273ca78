"""Layers of the stages of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.presets import MODELS
from simulator.sharding import balanced_layers, check_experts, check_shardable, spread_layers
from simulator.specs import ClusterSpec, Workload


def test_stages_are_balanced_by_the_head() -> None:
    """Of Llama 3 8B the head multiplies as much as 2.4 layers; of 405B as much as 0.7."""
    assert balanced_layers(MODELS["llama3-8b"], 2) == (17, 15)
    assert balanced_layers(MODELS["llama3-8b"], 4) == (9, 9, 8, 6)
    assert balanced_layers(MODELS["llama3-70b"], 2) == ()  # 41 instead of 41.2 layers
    assert balanced_layers(MODELS["llama3-405b"], 8) == ()  # the last stage has one less anyhow


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_stages_have_all_layers_between_them(name: str, stages: int) -> None:
    model = MODELS[name]
    layers = model.num_hidden_layers
    usual, balanced = spread_layers(layers, stages), balanced_layers(model, stages)
    assert sum(usual) == layers
    assert max(usual) - min(usual) <= 1
    assert usual[-1] == min(usual)
    if balanced:
        assert sum(balanced) == layers
        assert balanced[-1] == min(balanced) >= 1


# Rules by which experts are divided among ranks, and their explanations ---------------------------

WORK = Workload(seq_length=2048, micro_batch_size=1)
MIXTRAL, V3 = MODELS["mixtral-8x7b"], MODELS["deepseek-v3"]


@pytest.mark.parametrize(
    ("name", "work", "ranks", "said"),
    [
        ("llama3-8b", {}, {"ep": 2}, "--ep 2 is of experts, and llama3-8b has none; leave it out"),
        ("llama3-8b", {}, {"etp": 1}, "--etp 1 is of experts"),
        ("llama3-8b", {"moe_imbalance": 1.5}, {}, "--moe-imbalance 1.5 is of experts"),
        ("mixtral-8x7b", {}, {"dp": 16, "ep": 16}, "num_experts = 8 is not divisible by ep = 16"),
        ("qwen3-30b-a3b", {}, {"tp": 5, "etp": 5}, "moe_intermediate_size = 768 is not div.* etp"),
        ("qwen3-30b-a3b", {}, {"tp": 5}, "by etp, which is tp unless it is given, = 5"),
        ("mixtral-8x7b", {"moe_imbalance": 5.0}, {"ep": 4}, "at most ep = 4; got 5, lower it"),
        ("llama3-8b", {"moe_dispatcher_sms": 32}, {}, "moe_dispatcher_sms=32 is of experts"),
        ("mixtral-8x7b", {"moe_dispatcher_sms": 32}, {"ep": 4}, "got 32 with alltoall. Leave it"),
        ("mixtral-8x7b", {"moe_dispatcher": "deepep"}, {"tp": 1, "ep": 1}, "ep × etp is 1; use"),
        ("mixtral-8x7b", {"moe_shared_expert_overlap": True}, {}, "mixtral-8x7b has none; leave"),
    ],
)
def test_what_does_not_divide_is_explained(
    name: str, work: dict[str, Any], ranks: dict[str, Any], said: str
) -> None:
    cluster = ClusterSpec(**{"tp": 1, "dp": 4, "ranks_per_node": 2**20, **ranks})
    with pytest.raises(InputError, match=said):
        check_experts(MODELS[name], replace(WORK, **work), cluster)


@pytest.mark.parametrize(
    ("ranks", "advice"),
    [
        ({"tp": 2, "dp": 3, "ep": 2}, "use --set etp=1 or another divisor of 3, or an --ep that "
         "divides 3 and the number of experts"),
        ({"tp": 4, "dp": 8, "ep": 8, "etp": 3}, "use --set etp=1 or another divisor of 4."),
        ({"tp": 1, "dp": 8, "ep": 3}, "use an --ep that divides 8 and the number of experts."),
        ({"tp": 4, "dp": 2, "ep": 3, "etp": 3}, "use an etp and an --ep that divides the number of "
         "experts, whose product divides 8."),
    ],
)  # fmt: skip
def test_how_experts_would_divide(ranks: dict[str, Any], advice: str) -> None:
    with pytest.raises(InputError, match=f"must divide tp × cp × dp = .*; {advice}"):
        ClusterSpec(**{"ranks_per_node": 2**20, **ranks})


def test_groups_that_divide_are_accepted() -> None:
    for cluster in (
        ClusterSpec(tp=2, dp=4, ep=8, etp=1), ClusterSpec(tp=4, dp=2, ep=2),
        ClusterSpec(tp=1, cp=4, dp=2, ep=8), ClusterSpec(tp=1),
    ):  # fmt: skip
        check_experts(MIXTRAL, WORK, cluster)
    check_experts(MIXTRAL, replace(WORK, moe_dispatcher="deepep"), ClusterSpec(tp=2))


def test_the_dense_width_matters_only_where_layers_are_dense() -> None:
    odd = replace(MIXTRAL, intermediate_size=14337)
    check_shardable(odd, WORK, ClusterSpec(tp=2))
    with pytest.raises(InputError, match="intermediate_size = 18433 is not divisible by tp = 2"):
        check_shardable(replace(V3, intermediate_size=18433), WORK, ClusterSpec(tp=2))
    shared = replace(V3, shared_expert_intermediate_size=2047)
    with pytest.raises(InputError, match="shared_expert_intermediate_size = 2047 is not"):
        check_shardable(shared, WORK, ClusterSpec(tp=2))


@pytest.mark.parametrize("factor", [0.5, 0.0, -1.0, float("inf"), float("nan")])
def test_an_imbalance_is_at_least_one(factor: float) -> None:
    with pytest.raises(InputError, match="moe_imbalance must be a number ≥ 1"):
        replace(WORK, moe_imbalance=factor)
