"""A rank's shard: tokens, widths, bytes and parameters, from first principles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.ops import Collective
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec
from tests.unit.simulator.small_models import CUT, GPT, LLAMA, workload


def shapes_of(model: ModelSpec, plan: SlicePlan = CUT, tp: int = 2, dp: int = 1) -> Shapes:
    cluster = ClusterSpec(tp=tp, dp=dp)
    return Shapes(model=model, workload=workload(model), cluster=cluster, plan=plan)


def test_rows_and_tokens() -> None:
    shapes = shapes_of(GPT)
    assert shapes.rows == (2, 1)
    assert [shapes.tokens(row) for row in (0, 1, -1)] == [10, 5, 15]
    assert [shapes.hidden_bytes(row) for row in (0, 1)] == [10 * 40 * 2, 5 * 40 * 2]
    assert [shapes.mask_bytes(row) for row in (0, 1)] == [10 * 40, 5 * 40]
    assert shapes_of(LLAMA).mask_bytes(0) == 0
    assert shapes_of(LLAMA).hidden_bytes(0) == 10 * 40 * 4


def test_widths_are_cut_over_the_ranks() -> None:
    names = ("qkv", "core_attn", "fc1", "act")
    assert [shapes_of(GPT).width(name) for name in names] == [72, 24, 42, 42]
    assert [shapes_of(LLAMA).width(name) for name in names] == [40, 24, 84, 42]


def test_who_communicates() -> None:
    assert shapes_of(GPT).communicates
    assert not shapes_of(GPT, tp=1).communicates
    assert not shapes_of(GPT, NO_COMM).communicates


def test_groups_of_the_all_reduces() -> None:
    """Of 16 ranks on two nodes, the four of a tp group share a node; dp groups are on both."""
    model = replace(GPT, num_attention_heads=12, num_key_value_heads=12)
    shapes = shapes_of(model, replace(CUT, comm_ctas=5), tp=4, dp=4)
    assert shapes.tp_all_reduce(96) == Collective("all_reduce", 96, 1, 4, 5, "bf16")
    assert shapes.tp_all_reduce(96, "fp32") == Collective("all_reduce", 96, 1, 4, 5, "fp32")
    assert shapes.dp_reduction(25) == Collective("all_reduce", 100, 2, 2, 0, "fp32")


def test_biases_belong_to_their_block() -> None:
    def biases(model: ModelSpec) -> list[str]:
        return [name for name in ("qkv", "proj", "fc1", "fc2") if model.has_bias(name)]

    assert biases(GPT) == ["qkv", "proj"]
    assert biases(LLAMA) == ["fc1", "fc2"]
    assert biases(replace(GPT, proj_bias=False)) == ["qkv"]  # as in Qwen2
    assert biases(replace(LLAMA, proj_bias=False)) == ["fc1", "fc2"]


def test_a_layers_parameters_on_a_rank() -> None:
    """Two norms are on every rank, whole (LayerNorm has a scale and a shift), and so is the bias
    after the all-reduce."""
    h, attention, qkv, ffn = 40, 48, 3 * 48, 84
    gpt = (h * qkv + qkv + attention * h) // 2 + h + (h * ffn + ffn * h) // 2 + 2 * 2 * h
    assert shapes_of(GPT).layer_parameters == gpt
    grouped = (6 + 2 * 2) * 8
    llama = (h * grouped + attention * h) // 2 + (2 * h * ffn + 2 * ffn + ffn * h) // 2 + h + 2 * h
    assert shapes_of(LLAMA).layer_parameters == llama


def test_parameters_outside_the_layers() -> None:
    """The vocabulary of 300 is padded to 512 on two ranks. GPT: one table, seven positions, a
    LayerNorm. Llama: two tables and an RMSNorm."""
    assert shapes_of(GPT).edge_parameters == 40 * (256 + 7 + 2)
    assert shapes_of(LLAMA).edge_parameters == 40 * (2 * 256 + 1)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
def test_one_rank_has_all_parameters(model: ModelSpec) -> None:
    """Where nothing is cut and the vocabulary needs no padding, a rank is the whole model."""
    whole = replace(model, vocab_size=384)
    shapes = shapes_of(whole, MEGATRON, tp=1)
    assert shapes.layer_parameters == whole.layer_parameters
    assert shapes.held.whole == whole.parameters
    assert shapes.held.whole == 3 * shapes.layer_parameters + shapes.edge_parameters
