"""Ops of one layer against formulas: Megatron-LM's shapes, what each op moves, reads and keeps.

Expected numbers are products of the sizes in ``small_models``, as the papers write them: GEMMs from
Megatron-LM (arXiv 1909.08053), activations from Korthikanti et al. (arXiv 2205.05198).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.build import build_schedule
from simulator.ops import Attention, Collective, Gemm, Pointwise
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.schedule import COMPUTE, TP, Schedule
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.unit.simulator.small_models import CUT, GPT, LLAMA, ops_of, schedule_of, sizes_of

TOKENS = 2 * 5  # slice 0: two sequences of five tokens
HIDDEN = 40
HEADS = 6 * 8 // 2  # columns of this rank's query heads
FFN = 84 // 2


def gemms(schedule: Schedule, row: int = 0) -> dict[str, tuple[int, int, int, str]]:
    """(m, n, k, what else) by name."""
    found = {}
    for name, op in ops_of(schedule, row=row).items():
        g = op.signature
        if isinstance(g, Gemm):
            extras = ("bias " if g.bias else "") + ("adds" if g.accumulate else "")
            found[name] = (g.m, g.n, g.k, f"{g.layout} {g.dtype} {extras}".strip())
    return found


def test_gemms_of_a_gpt_layer() -> None:
    """qkv is 3·a·d columns, fc1 f; proj and fc2 are cut by columns, dgrads too, wgrads never."""
    qkv = 3 * HEADS
    forward, dgrad, wgrad = "forward bf16", "dgrad bf16", "wgrad bf16"
    assert gemms(schedule_of(GPT)) == {
        "attn.qkv": (TOKENS, qkv, HIDDEN, f"{forward} bias"),
        **{f"attn.proj.{j}": (TOKENS, HIDDEN // 2, HEADS, forward) for j in range(2)},
        "mlp.fc1": (TOKENS, FFN, HIDDEN, forward),
        **{f"mlp.fc2.{j}": (TOKENS, HIDDEN // 4, FFN, forward) for j in range(4)},
        "mlp.fc2_dgrad": (TOKENS, FFN, HIDDEN, dgrad),
        "mlp.fc2_wgrad": (HIDDEN, FFN, TOKENS, wgrad),
        **{f"mlp.fc1_dgrad.{j}": (TOKENS, HIDDEN // 2, FFN, dgrad) for j in range(2)},
        "mlp.fc1_wgrad": (FFN, HIDDEN, TOKENS, wgrad),
        "attn.proj_dgrad": (TOKENS, HEADS, HIDDEN, dgrad),
        "attn.proj_wgrad": (HIDDEN, HEADS, TOKENS, f"{wgrad} bias"),
        **{f"attn.qkv_dgrad.{j}": (TOKENS, HIDDEN // 4, qkv, dgrad) for j in range(4)},
        "attn.qkv_wgrad": (qkv, HIDDEN, TOKENS, f"{wgrad} bias"),
    }


def test_gemms_of_a_llama_layer() -> None:
    """Three heads share a kv head, so qkv is (6 + 2·2)·d columns; gate and up are one GEMM."""
    qkv, gated = (6 + 2 * 2) * 8 // 2, 2 * FFN
    found = gemms(schedule_of(LLAMA, MEGATRON))
    tokens = 3 * 5
    assert found["attn.qkv"] == (tokens, qkv, HIDDEN, "forward fp32")
    assert found["attn.qkv_wgrad"] == (qkv, HIDDEN, tokens, "wgrad fp32")
    assert found["mlp.fc1"] == (tokens, gated, HIDDEN, "forward fp32 bias")
    assert found["mlp.fc1_dgrad.0"] == (tokens, HIDDEN, gated, "dgrad fp32")
    assert found["mlp.fc1_wgrad"] == (gated, HIDDEN, tokens, "wgrad fp32 bias")
    assert found["mlp.fc2.0"] == (tokens, HIDDEN, FFN, "forward fp32")
    assert found["mlp.fc2_wgrad"] == (HIDDEN, FFN, tokens, "wgrad fp32 bias")


def test_wgrads_of_later_slices_and_micro_batches_add() -> None:
    names = ("attn.qkv_wgrad", "attn.proj_wgrad", "mlp.fc1_wgrad", "mlp.fc2_wgrad")
    for row, micros, adds in ((0, 1, False), (1, 1, True)):
        found = gemms(schedule_of(GPT, micros=micros), row=row)
        assert all(found[name][3].endswith("adds") is adds for name in names)
    later = [op for op in schedule_of(GPT, micros=2).ops() if op.micro == 1]
    found_adds = {
        op.signature.accumulate
        for op in later
        if isinstance(op.signature, Gemm) and op.signature.layout == "wgrad"
    }
    assert found_adds == {True}


def test_merged_wgrads_take_all_tokens_of_all_slices() -> None:
    schedule = schedule_of(GPT, replace(CUT, merge_wgrad=True))
    merged = {op.role: op for op in schedule.ops() if op.layer == 1 and op.slice == -1}
    signature = merged["mlp.fc1_wgrad"].signature
    assert signature == Gemm(FFN, HIDDEN, 3 * 5, "wgrad", "bf16")
    dys = ("l1.d.s0.mlp.fc1", "l1.d.s1.mlp.fc1")
    assert merged["mlp.fc1_wgrad"].reads == (*dys, "l1.mlp.fc1_wgrad.x.joined")
    assert merged["mlp.fc1_wgrad.x"].reads == ("l1.s0.mlp.norm", "l1.s1.mlp.norm")
    assert merged["mlp.fc1_wgrad.x"].signature == Pointwise(
        "copy", 2 * 3 * 5 * HIDDEN, 2 * 3 * 5 * HIDDEN, "bf16", 2
    )
    assert merged["attn.proj_wgrad"].reads == (
        "l1.attn.proj_wgrad.dy.joined", "l1.attn.proj_wgrad.x.joined",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "sequence_parallel", "copies"),
    [
        (GPT, False, ["mlp.fc2_wgrad.dy", "mlp.fc1_wgrad.x", "attn.proj_wgrad.dy",
                      "attn.proj_wgrad.x", "attn.qkv_wgrad.x"]),
        (replace(GPT, hidden_dropout=0.0), False,
         ["mlp.fc1_wgrad.x", "attn.proj_wgrad.x", "attn.qkv_wgrad.x"]),
        (GPT, True, ["attn.proj_wgrad.x"]),
        (LLAMA, False, ["attn.proj_wgrad.x"]),
        (LLAMA, True, ["attn.proj_wgrad.x"]),
    ],
)  # fmt: skip
def test_merged_wgrads_copy_what_libraries_write_apart(
    model: ModelSpec, sequence_parallel: bool, copies: list[str]
) -> None:
    """What the runtime's kernels and gathers write stands side by side."""
    plan = SlicePlan(row_slices=2, merge_wgrad=True, sequence_parallel=sequence_parallel,
                     order="intra", wgrad="eager")  # fmt: skip
    work = Workload(seq_length=4, micro_batch_size=2, dtype="bf16")
    for merged, roles in ((plan, copies), (replace(plan, merge_wgrad=False), [])):
        ops = build_schedule(model, work, ClusterSpec(tp=2), merged).ops()
        assert [op.role for op in ops if op.layer == 1 and "_wgrad." in op.role] == roles


def test_attention_cores() -> None:
    forward = Attention(2, 3, 3, 5, 8, True, "forward", "bf16")
    ops = ops_of(schedule_of(GPT))
    assert ops["attn.core_attn"].signature == forward
    assert ops["attn.core_attn_bwd"].signature == forward._replace(direction="backward")
    grouped = ops_of(schedule_of(LLAMA), row=1)["attn.core_attn"].signature
    assert grouped == Attention(1, 3, 1, 5, 8, True, "forward", "fp32")


def moved(schedule: Schedule) -> dict[str, tuple[str, int, int, int]]:
    """(name, bytes read, bytes written, column pieces) of pointwise ops."""
    return {
        name: (op.signature.name, op.signature.bytes_read, op.signature.bytes_written,
               op.signature.pieces)
        for name, op in ops_of(schedule).items()
        if isinstance(op.signature, Pointwise)
    }  # fmt: skip


def test_bytes_that_a_gpt_layers_pointwise_ops_move() -> None:
    """x is [tokens, hidden] in bf16; a mask has a byte an element. A norm's backward reads x, its
    output's gradient and the residual's; cut dgrads are gathered first: one more read and write."""
    x, mask, act = TOKENS * HIDDEN * 2, TOKENS * HIDDEN, TOKENS * FFN * 2
    assert moved(schedule_of(GPT)) == {
        "attn.norm": ("layernorm", x, x, 1),
        "attn.residual": ("bias_dropout_add", 2 * x, x + mask, 2),
        "mlp.norm": ("layernorm", x, x, 1),
        "mlp.act": ("gelu", act, act, 1),
        "mlp.residual": ("bias_dropout_add", 2 * x, x + mask, 4),
        "mlp.residual_bwd": ("bias_dropout_add_bwd", x + mask, x, 1),
        "mlp.act_bwd": ("gelu_bwd", 2 * act, act, 1),
        "mlp.norm_bwd": ("layernorm_bwd", 4 * x, 2 * x, 2),
        "attn.residual_bwd": ("bias_dropout_add_bwd", x + mask, x, 1),
        "attn.norm_bwd": ("layernorm_bwd", 4 * x, 2 * x, 4),
    }


def test_bytes_that_a_llama_layers_pointwise_ops_move() -> None:
    """No dropout, so no masks and no backward of the residual; SwiGLU reads two halves; RoPE turns
    queries and keys; whole dgrads need no gathering."""
    tokens = 3 * 5
    x, act, turned = tokens * HIDDEN * 4, tokens * FFN * 4, tokens * (6 + 2) * 8 // 2 * 4
    assert moved(schedule_of(LLAMA, MEGATRON)) == {
        "attn.norm": ("rmsnorm", x, x, 1),
        "attn.residual": ("add", 2 * x, x, 1),
        "attn.rope": ("rope", turned, turned, 1),
        "mlp.norm": ("rmsnorm", x, x, 1),
        "mlp.act": ("swiglu", 2 * act, act, 1),
        "mlp.residual": ("bias_dropout_add", 2 * x, x, 1),
        "mlp.act_bwd": ("swiglu_bwd", 3 * act, 2 * act, 1),
        "mlp.norm_bwd": ("rmsnorm_bwd", 3 * x, x, 1),
        "attn.rope_bwd": ("rope_bwd", turned, turned, 1),
        "attn.norm_bwd": ("rmsnorm_bwd", 3 * x, x, 1),
    }


@pytest.mark.parametrize(("dropout", "bias", "name"), [
    (0.0, False, "add"), (0.0, True, "bias_dropout_add"), (0.1, False, "bias_dropout_add"),
])  # fmt: skip
def test_a_residual_without_bias_and_dropout_only_adds(
    dropout: float, bias: bool, name: str
) -> None:
    model = replace(GPT, hidden_dropout=dropout, attention_bias=bias, mlp_bias=not bias)
    ops = moved(schedule_of(model, MEGATRON))
    assert ops["attn.residual"][0] == name
    if not dropout:
        assert ops["mlp.residual"][0] == ("add" if bias else "bias_dropout_add")


def all_reduces(schedule: Schedule) -> dict[str, int]:
    """Bytes of the all-reduces over the tensor-parallel group."""
    found = {}
    for name, op in ops_of(schedule).items():
        if isinstance(op.signature, Collective):
            assert op.lane == TP
            assert op.signature == Collective(
                "all_reduce", op.signature.size_bytes, 1, 2, 0, "bf16"
            )
            found[name] = op.signature.size_bytes
        else:
            assert op.lane == COMPUTE
    return found


def test_every_column_piece_has_its_all_reduce() -> None:
    x = TOKENS * HIDDEN * 2
    assert all_reduces(schedule_of(GPT)) == {
        **{f"attn.proj.ar.{j}": x // 2 for j in range(2)},
        **{f"mlp.fc2.ar.{j}": x // 4 for j in range(4)},
        **{f"mlp.fc1_dgrad.ar.{j}": x // 2 for j in range(2)},
        **{f"attn.qkv_dgrad.ar.{j}": x // 4 for j in range(4)},
    }
    assert not all_reduces(schedule_of(GPT, NO_COMM))
    assert not all_reduces(schedule_of(GPT, tp=1))


def test_sizes_of_a_gpt_layers_values() -> None:
    """In slice 0: forward, 34·s·b·h of the paper less attention's matrix; backward the same."""
    x, mask = TOKENS * HIDDEN * 2, TOKENS * HIDDEN
    core, ffn = TOKENS * HEADS * 2, TOKENS * FFN * 2
    sizes = sizes_of(schedule_of(GPT))
    inside = {name: size for name, size in sizes.items() if "s0" in name}
    edges = ("s0.embed", "s0.head.norm", "s0.logits", "s0.loss.max", "s0.loss.sum",
             "d.s0.head.norm")  # fmt: skip
    assert {name: size for name, size in inside.items() if name not in edges} == {
        "s0.x": x + mask, "s0.y": x + mask,
        "s0.attn.norm": x, "s0.attn.qkv": 3 * core, "s0.attn.core_attn": core,
        "s0.mlp.norm": x, "s0.mlp.fc1": ffn, "s0.mlp.act": ffn,
        **{f"s0.attn.proj.{j}": x // 2 for j in range(2)},
        **{f"s0.mlp.fc2.{j}": x // 4 for j in range(4)},
        "d.s0.x": x, "d.s0.y": x, "d.s0.attn.residual": x, "d.s0.mlp.residual": x,
        "d.s0.mlp.act": ffn, "d.s0.mlp.fc1": ffn,
        "d.s0.attn.core_attn": core, "d.s0.attn.qkv": 3 * core,
        **{f"d.s0.mlp.norm.{j}": x // 2 for j in range(2)},
        **{f"d.s0.attn.norm.{j}": x // 4 for j in range(4)},
    }  # fmt: skip


def test_sizes_of_a_llama_layers_values() -> None:
    tokens = 3 * 5
    x, core, ffn = tokens * HIDDEN * 4, tokens * HEADS * 4, tokens * FFN * 4
    qkv = tokens * (6 + 2 * 2) * 8 // 2 * 4
    sizes = sizes_of(schedule_of(LLAMA, MEGATRON))
    assert (sizes["s0.x"], sizes["s0.y"], sizes["d.s0.x"]) == (x, x, x)
    assert (sizes["s0.attn.qkv"], sizes["d.s0.attn.qkv.rope"]) == (qkv, qkv)
    assert (sizes["s0.attn.core_attn"], sizes["d.s0.attn.core_attn"]) == (core, core)
    assert (sizes["s0.mlp.fc1"], sizes["d.s0.mlp.fc1"]) == (2 * ffn, 2 * ffn)
    assert (sizes["s0.mlp.act"], sizes["d.s0.mlp.act"]) == (ffn, ffn)
    assert not {"s0.attn.qkv.rope", "d.s0.attn.qkv"} & sizes.keys(), "RoPE works in place"


def reads(model: ModelSpec) -> dict[str, str]:
    """What the ops of layer 1 read, slice 0; ``l1.`` is left out."""
    ops = ops_of(schedule_of(model, MEGATRON))
    return {
        name: " ".join(value.removeprefix("l1.") for value in op.reads) for name, op in ops.items()
    }


def test_what_the_ops_of_a_gpt_layer_read() -> None:
    """The forward pass and its derivative, with dropout's masks inside x and y."""
    assert reads(GPT) == {
        "attn.norm": "s0.x w.attn.norm",
        "attn.qkv": "s0.attn.norm w.attn.qkv",
        "attn.core_attn": "s0.attn.qkv",
        "attn.proj.0": "s0.attn.core_attn w.attn.proj",
        "attn.proj.ar.0": "s0.attn.proj.0",
        "attn.residual": "s0.attn.proj.0.ar s0.x",
        "mlp.norm": "s0.y w.mlp.norm",
        "mlp.fc1": "s0.mlp.norm w.mlp.fc1",
        "mlp.act": "s0.mlp.fc1",
        "mlp.fc2.0": "s0.mlp.act w.mlp.fc2",
        "mlp.fc2.ar.0": "s0.mlp.fc2.0",
        "mlp.residual": "s0.mlp.fc2.0.ar s0.y",
        "mlp.residual_bwd": "l2.d.s0.x l2.s0.x",
        "mlp.fc2_dgrad": "d.s0.mlp.residual w.mlp.fc2",
        "mlp.fc2_wgrad": "d.s0.mlp.residual s0.mlp.act",
        "mlp.act_bwd": "d.s0.mlp.act s0.mlp.fc1",
        "mlp.fc1_dgrad.0": "d.s0.mlp.fc1 w.mlp.fc1",
        "mlp.fc1_dgrad.ar.0": "d.s0.mlp.norm.0",
        "mlp.fc1_wgrad": "d.s0.mlp.fc1 s0.mlp.norm",
        "mlp.norm_bwd": "d.s0.mlp.norm.0.ar s0.y l2.d.s0.x w.mlp.norm",
        "attn.residual_bwd": "d.s0.y s0.y",
        "attn.proj_dgrad": "d.s0.attn.residual w.attn.proj",
        "attn.proj_wgrad": "d.s0.attn.residual s0.attn.core_attn",
        "attn.core_attn_bwd": "d.s0.attn.core_attn s0.attn.qkv s0.attn.core_attn",
        "attn.qkv_dgrad.0": "d.s0.attn.qkv w.attn.qkv",
        "attn.qkv_dgrad.ar.0": "d.s0.attn.norm.0",
        "attn.qkv_wgrad": "d.s0.attn.qkv s0.attn.norm",
        "attn.norm_bwd": "d.s0.attn.norm.0.ar s0.x d.s0.y w.attn.norm",
    }


def test_without_dropout_gradients_of_the_residual_stream_are_read_as_they_are() -> None:
    found = reads(LLAMA)
    assert found["mlp.fc2_dgrad"] == "l2.d.s0.x w.mlp.fc2"
    assert found["mlp.fc2_wgrad"] == "l2.d.s0.x s0.mlp.act"
    assert found["attn.proj_dgrad"] == "d.s0.y w.attn.proj"
    assert found["attn.proj_wgrad"] == "d.s0.y s0.attn.core_attn"
    assert found["attn.core_attn"] == "s0.attn.qkv.rope"
    assert found["attn.rope_bwd"] == "d.s0.attn.qkv.rope"
    assert found["attn.qkv_dgrad.0"] == "d.s0.attn.qkv w.attn.qkv"
