"""ModelSpec, Workload, ClusterSpec: what they refuse, and what they derive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.dtypes import DTYPE_BYTES
from simulator.errors import InputError, require_divisible
from simulator.presets import MODELS
from simulator.sharding import check_shardable, padded_vocab_size
from simulator.specs import ClusterSpec, Workload

GPT = MODELS["gpt3-13b"]
LLAMA = MODELS["llama2-70b"]
WORK = Workload(seq_length=1024, micro_batch_size=16)


@given(st.integers(1, 10_000), st.integers(2, 200))
def test_indivisible_numbers_are_named_with_the_nearest_that_work(value: int, by: int) -> None:
    if value % by == 0:
        require_divisible("heads", value, "tp", by)
        return
    with pytest.raises(InputError) as caught:
        require_divisible("heads", value, "tp", by)
    message, _, nearest = str(caught.value).partition("nearest multiples: ")
    assert f"heads = {value}" in message
    assert f"tp = {by}" in message
    found = [int(number) for number in nearest.rstrip(".").split(" or ")]
    assert found
    assert all(n > 0 and n % by == 0 and abs(n - value) < by for n in found)


@pytest.mark.parametrize(("heads", "tp", "near"), [(16, 3, "2 or 4"), (40, 3, "2 or 4")])
def test_the_tp_that_is_offered_works(heads: int, tp: int, near: str) -> None:
    model = replace(GPT, num_attention_heads=heads, num_key_value_heads=heads)
    with pytest.raises(InputError, match=rf"not divisible by tp = {tp}; .*: {near}\."):
        check_shardable(model, WORK, ClusterSpec(tp=tp))
    for offered in near.split(" or "):
        check_shardable(model, WORK, ClusterSpec(tp=int(offered)))


@pytest.mark.parametrize("tp", [16, 32])
def test_gpt3_13b_needs_other_heads_above_one_node(tp: int) -> None:
    with pytest.raises(InputError, match=rf"num_attention_heads = 40 .* tp = {tp}.* ffn: [0-9]"):
        check_shardable(GPT, WORK, ClusterSpec(tp=tp))
    check_shardable(
        replace(GPT, num_attention_heads=64, num_key_value_heads=64), WORK, ClusterSpec(tp=tp)
    )


def test_what_does_not_shard_says_which_number() -> None:
    wide = replace(LLAMA, num_attention_heads=96, head_dim=64, intermediate_size=24576)
    allowed = r"num_key_value_heads = 8 is neither .* of tp = 12; nearest tp .*kv heads: 8 or 16\."
    with pytest.raises(InputError, match=allowed):
        check_shardable(wide, WORK, ClusterSpec(tp=12, ranks_per_node=4))
    with pytest.raises(InputError, match=r"intermediate_size = 28674 .* tp = 8"):
        check_shardable(replace(LLAMA, intermediate_size=28674), WORK, ClusterSpec(tp=8))


def test_learned_positions_bound_the_sequence_and_rope_does_not() -> None:
    long = replace(WORK, seq_length=8192)
    with pytest.raises(InputError, match="--set max_position_embeddings=8192"):
        check_shardable(GPT, long, ClusterSpec(tp=8))
    check_shardable(LLAMA, long, ClusterSpec(tp=8))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 0}, {"hidden_size": -5}, {"vocab_size": 1.5}, {"head_dim": True},
        {"hidden_dropout": float("nan")}, {"attention_dropout": 1.0}, {"rope_theta": -1.0},
        {"norm_eps": float("inf")}, {"num_key_value_heads": 7},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_models_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replace(GPT, **changes)


@pytest.mark.parametrize(
    "changes",
    [{"seq_length": 0}, {"micro_batch_size": -1}, {"grad_accumulation": 0.5}, {"dtype": "int3"}],
    ids=str,
)
def test_impossible_workloads_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="workload"):
        replace(WORK, **changes)


@pytest.mark.parametrize(
    ("tp", "dp", "tp_group", "dp_group"),
    [
        (1, 1, (1, 1), (1, 1)), (8, 1, (1, 8), (1, 1)), (2, 4, (1, 2), (1, 4)),
        (8, 4, (1, 8), (4, 1)), (4, 4, (1, 4), (2, 2)), (16, 1, (2, 8), (1, 1)),
        (16, 2, (2, 8), (2, 1)),
    ],
)  # fmt: skip
def test_ranks_fill_nodes_tp_first(
    tp: int, dp: int, tp_group: tuple[int, int], dp_group: tuple[int, int]
) -> None:
    cluster = ClusterSpec(tp=tp, dp=dp)
    assert (cluster.tp_group, cluster.dp_group) == (tp_group, dp_group)
    assert cluster.nodes == -(-tp * dp // 8)


@pytest.mark.parametrize(("tp", "dp"), [(12, 1), (3, 8), (6, 3), (0, 1), (8, -1)])
def test_groups_that_do_not_fill_nodes_are_refused(tp: int, dp: int) -> None:
    with pytest.raises(InputError):
        ClusterSpec(tp=tp, dp=dp)


def test_vocabulary_is_padded_as_megatron_does() -> None:
    assert padded_vocab_size(GPT, ClusterSpec(tp=8)) == 51200
    assert padded_vocab_size(GPT, ClusterSpec(tp=1)) == 50304
    assert padded_vocab_size(LLAMA, ClusterSpec(tp=2)) == 32000


def test_sizes_of_gated_and_grouped_models() -> None:
    assert LLAMA.qkv_size == (64 + 2 * 8) * 128
    assert LLAMA.fc1_size == 2 * 28672
    assert (GPT.qkv_size, GPT.fc1_size) == (3 * 5120, 4 * 5120)


@pytest.mark.parametrize("value", [10**12 + 1, 10**400])
def test_sizes_beyond_any_job_are_refused(value: int) -> None:
    with pytest.raises(InputError, match="hidden_size must be at most"):
        replace(MODELS["gpt3-13b"], hidden_size=value)
    with pytest.raises(InputError, match="seq_length must be"):
        Workload(seq_length=-value, micro_batch_size=1)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama2-7b", 6_738_415_616), ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192), ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496), ("llama3-405b", 405_853_388_800),
    ],
)  # fmt: skip
def test_parameters_are_those_of_the_released_weights(name: str, parameters: int) -> None:
    assert MODELS[name].parameters == parameters


@pytest.mark.parametrize("name", ["gpt3-1.3b", "gpt3-175b"])
def test_parameters_of_a_gpt_follow_megatrons_formula(name: str) -> None:
    """12·l·h²·(1 + 13/(12·h) + (V + S)/(12·l·h)), and the final norm."""
    model = MODELS[name]
    h, layers = model.hidden_size, model.num_hidden_layers
    assert model.layer_parameters == 12 * h * h + 13 * h
    edges = (model.vocab_size + model.max_position_embeddings) * h + 2 * h
    assert model.parameters == layers * model.layer_parameters + edges


def test_biases_of_one_block_are_counted_alone() -> None:
    both, attention = GPT.layer_parameters, replace(GPT, mlp_bias=False).layer_parameters
    assert both - attention == (4 + 1) * 5120
    assert both - replace(GPT, attention_bias=False).layer_parameters == (3 + 1) * 5120


def test_the_largest_sizes_and_the_smallest_rates_are_taken() -> None:
    assert replace(GPT, vocab_size=10**12).vocab_size == 10**12
    assert replace(GPT, norm_eps=0.0, hidden_dropout=0.0).norm_eps == 0.0
    assert replace(GPT, attention_dropout=0.99, rope_theta=1e300).rope_theta == 1e300
    with pytest.raises(InputError, match=rf"got -{10**12}\."):
        replace(GPT, vocab_size=-(10**12))
    with pytest.raises(InputError, match="got less"):
        replace(GPT, vocab_size=-(10**12) - 1)


@pytest.mark.parametrize(
    ("heads", "tp", "near"), [(24, 5, "4 or 8"), (24, 7, "4 or 8"), (24, 16, "8")]
)
def test_the_nearest_tp_can_be_asked_for_in_its_place(heads: int, tp: int, near: str) -> None:
    model = replace(GPT, num_attention_heads=heads, num_key_value_heads=heads, intermediate_size=96)
    with pytest.raises(InputError, match=rf"heads and ffn: {near}\."):
        check_shardable(model, WORK, ClusterSpec(tp=tp))


def test_heads_that_would_shard_are_offered_where_only_they_do_not() -> None:
    """Multiples of 16 that divide 5120, next to 40."""
    node = ClusterSpec(tp=16)
    offer = r"Or try --set num_attention_heads=32 or --set num_attention_heads=64\."
    with pytest.raises(InputError, match=offer):
        check_shardable(GPT, WORK, node)
    odd = replace(GPT, num_attention_heads=36, num_key_value_heads=36)
    with pytest.raises(InputError, match=r"Or try --set num_attention_heads=32 or --set .*=40\.$"):
        check_shardable(odd, WORK, ClusterSpec(tp=8))
    for other in (replace(GPT, num_key_value_heads=20), replace(GPT, intermediate_size=20488)):
        near = r"num_attention_heads = 40 .*heads and ffn[a-z, ]*: \d+( or \d+)?\.$"
        with pytest.raises(InputError, match=near):
            check_shardable(other, WORK, node)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32, 64])
def test_tp_above_the_kv_heads_is_a_multiple_of_them(tp: int) -> None:
    check_shardable(LLAMA, WORK, ClusterSpec(tp=tp))
    check_shardable(replace(LLAMA, num_key_value_heads=1), WORK, ClusterSpec(tp=tp))


def test_a_sliding_window_may_not_be_shorter_than_the_sequence() -> None:
    model = replace(LLAMA, sliding_window=1024)
    check_shardable(model, replace(WORK, seq_length=1024), ClusterSpec(tp=8))
    short = r"window of 1024 tokens.*--seq-length 1025.*Give --seq-length 1024.*sliding_window=0"
    with pytest.raises(InputError, match=short):
        check_shardable(model, replace(WORK, seq_length=1025), ClusterSpec(tp=8))
    with pytest.raises(InputError, match="sliding_window must be a whole number"):
        replace(LLAMA, sliding_window=-1)


def test_what_qwen3_and_gemma2_have_is_counted_and_named() -> None:
    """Norms of q and k have a weight a head element; norms after blocks one a hidden element."""
    h, plain = LLAMA.hidden_size, LLAMA.layer_parameters
    assert replace(LLAMA, qk_norm=True).layer_parameters == plain + 2 * LLAMA.head_dim
    assert replace(LLAMA, post_norm=True).layer_parameters == plain + 2 * h
    both = replace(GPT, qk_norm=True, post_norm=True)
    assert both.layer_parameters == GPT.layer_parameters + 2 * (2 * 128 + 2 * 5120)
    assert LLAMA.extras == ()
    capped = replace(both, final_logit_softcapping=30.0)
    assert capped.extras == ("qk_norm", "post_norm", "final_logit_softcapping")


def test_the_nearest_ffn_sizes_are_offered() -> None:
    with pytest.raises(InputError, match=r"nearest multiples: 28672 or 28680\."):
        check_shardable(replace(LLAMA, intermediate_size=28674), WORK, ClusterSpec(tp=8))
    with pytest.raises(InputError, match=r"nearest multiples: 8 or 8\."):
        check_shardable(replace(LLAMA, intermediate_size=7), WORK, ClusterSpec(tp=8))


def test_a_sequence_may_take_all_positions() -> None:
    check_shardable(GPT, replace(WORK, seq_length=2048), ClusterSpec(tp=8))
    with pytest.raises(InputError, match="seq_length = 2049"):
        check_shardable(GPT, replace(WORK, seq_length=2049), ClusterSpec(tp=8))


def test_a_workload_counts_one_micro_batch() -> None:
    assert (WORK.tokens, WORK.grad_accumulation, WORK.dtype) == (16 * 1024, 1, "bf16")
    bytes_of = {dtype: replace(WORK, dtype=dtype).dtype_bytes for dtype in DTYPE_BYTES}  # type: ignore[arg-type]
    assert bytes_of == {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}


def test_a_cluster_is_one_node_of_eight_ranks_unless_told() -> None:
    cluster = ClusterSpec(tp=4)
    assert (cluster.dp, cluster.ranks_per_node, cluster.cuda_graph) == (1, 8, False)
    assert ClusterSpec(tp=4, dp=3, ranks_per_node=4).nodes == 3
    assert ClusterSpec(tp=2, dp=3, ranks_per_node=6).dp_group == (1, 3)
    assert ClusterSpec(tp=3, dp=2).nodes == 1, "part of a node may be any number of ranks"
