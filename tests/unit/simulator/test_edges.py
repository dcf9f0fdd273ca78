"""Ops outside the layers against formulas: embedding, head and loss, gradient norm, Adam."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.build import build_schedule
from simulator.edges import HEAD_GRADS, Edges
from simulator.issue_order import parse_token
from simulator.ops import Collective, Gemm, Pointwise
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.schedule import DP, TP, Op, Schedule
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec
from simulator.templates import Templates
from tests.unit.simulator.small_models import (
    CUT,
    GPT,
    LLAMA,
    edges_of,
    schedule_of,
    sizes_of,
    workload,
)

HIDDEN = 40
VOCAB = 512 // 2
"""Columns of this rank: 300 words are padded to a multiple of 128 × tp."""


def moved(op: Op) -> tuple[str, int, int]:
    """(name, bytes read, bytes written) of a pointwise op."""
    assert isinstance(op.signature, Pointwise)
    assert op.signature.pieces == 1
    return op.signature[:3]


def rank_parameters() -> int:
    """GPT's parameters on one of two ranks: linears and tables are halved, and so are the biases of
    qkv; norms, positions and proj's bias are whole."""
    columns = 3 * 48 // 2 + 84 // 2  # qkv, fc1
    linears = HIDDEN * (columns + 48 // 2 + 84 // 2)
    biases = 3 * 48 // 2 + HIDDEN
    norms = 2 * 2 * HIDDEN
    return 3 * (linears + biases + norms) + HIDDEN * (VOCAB + 7 + 2)


@pytest.mark.parametrize(("row", "tokens"), [(0, 10), (1, 5)])
def test_embedding_and_head_of_a_gpt(row: int, tokens: int) -> None:
    """Cross-entropy takes the maximum, then sum and target, then the gradient, all of [tokens,
    vocabulary]; one loss term has four bytes."""
    x, mask, logits = tokens * HIDDEN * 2, tokens * HIDDEN, tokens * VOCAB * 2
    ops = edges_of(schedule_of(GPT))
    expected = {
        "embed": ("embedding", x, x),
        "embed.post": ("embedding_post", x, x + mask),
        "head.norm": ("layernorm", x, x),
        "loss.max": ("cross_entropy_max", logits, 4 * tokens),
        "loss.sum": ("cross_entropy_sum", logits, 8 * tokens),
        "loss.grad": ("cross_entropy_grad", logits, logits),
        "head.norm_bwd": ("layernorm_bwd", 2 * x, x),
        "embed_bwd": ("embedding_bwd", x + mask, x),
    }
    assert {name: moved(ops[f"s{row}.{name}"]) for name in expected} == expected


def test_unfused_cross_entropy_is_a_kernel_an_operator() -> None:
    """Forward: to fp32 and the maximum, then less it, exponential, sum, and over the sum. Bytes of
    a logit, whatever the kernel."""
    given = workload(GPT)
    unfused = replace(given.implementation, cross_entropy_loss_fusion=False)
    cluster = ClusterSpec(tp=2)
    schedule = build_schedule(GPT, replace(given, implementation=unfused), cluster, CUT)
    logits = 10 * VOCAB
    ops = edges_of(schedule)
    found = {name: ops[f"s0.loss.{name}"].signature for name in ("max", "sum", "grad")}
    passes = {"max": (2, 6, 4), "sum": (4, 16, 12), "grad": (3, 12, 6)}
    law = "unfused_cross_entropy"
    assert found == {
        name: Pointwise(law, reads * logits, writes * logits, "bf16", kernels=kernels)
        for name, (kernels, reads, writes) in passes.items()
    }


def test_an_embedding_without_positions_and_dropout_moves_nothing_more() -> None:
    """Learned positions are added, and dropout writes a mask; RoPE comes inside the layers."""
    x, mask = 10 * HIDDEN * 4, 10 * HIDDEN
    for positions, dropout, expected in (
        ("rope", 0.0, (0, 0)), ("learned", 0.0, (x, x)), ("rope", 0.1, (x, x + mask)),
    ):  # fmt: skip
        model = replace(LLAMA, position_embedding=positions, hidden_dropout=dropout)  # type: ignore[arg-type]
        ops = edges_of(schedule_of(model))
        assert moved(ops["s0.embed.post"]) == ("embedding_post", *expected)


@pytest.mark.parametrize(("row", "tokens"), [(0, 10), (1, 5)])
def test_gemms_of_the_head(row: int, tokens: int) -> None:
    ops = edges_of(schedule_of(GPT))
    head = {
        name: ops[f"s{row}.head.{name}"].signature
        for name in ("logits", "logits_dgrad", "logits_wgrad")
    }
    assert head == {
        "logits": Gemm(tokens, VOCAB, HIDDEN, "forward", "bf16"),
        "logits_dgrad": Gemm(tokens, HIDDEN, VOCAB, "dgrad", "bf16"),
        "logits_wgrad": Gemm(VOCAB, HIDDEN, tokens, "wgrad", "bf16", row > 0),
    }


def all_reduces(schedule: Schedule) -> dict[str, tuple[int, int, int, str]]:
    """(lane, bytes, ranks, dtype) of the edges' all-reduces."""
    return {
        name: (op.lane, op.signature.size_bytes, op.signature.ranks, op.signature.dtype)
        for name, op in edges_of(schedule).items()
        if isinstance(op.signature, Collective)
    }


def test_all_reduces_of_the_edges() -> None:
    """Activations in the model's dtype, loss terms and the norm in fp32; the last bucket holds all
    gradients of a stack that is too small for more."""
    expected: dict[str, tuple[int, int, int, str]] = {
        "step.dp.ar": (DP, 4 * rank_parameters(), 3, "fp32"),
        "step.grad_norm.ar": (TP, 4, 2, "fp32"),
    }
    for row, tokens in ((0, 10), (1, 5)):
        expected[f"s{row}.embed.ar"] = (TP, tokens * HIDDEN * 2, 2, "bf16")
        expected[f"s{row}.loss.max.ar"] = (TP, 4 * tokens, 2, "fp32")
        expected[f"s{row}.loss.sum.ar"] = (TP, 8 * tokens, 2, "fp32")
        expected[f"s{row}.head.logits_dgrad.ar"] = (TP, tokens * HIDDEN * 2, 2, "bf16")
    assert all_reduces(schedule_of(GPT, dp=3)) == expected
    assert not all_reduces(schedule_of(GPT, NO_COMM, dp=3))


def test_the_optimizer_reads_and_writes_all_parameters() -> None:
    """Adam reads main parameter, two moments and gradient in fp32, and writes the first three and
    the model's own copy, here of two bytes."""
    ops, parameters = edges_of(schedule_of(GPT)), rank_parameters()
    assert moved(ops["step.grad_norm"]) == ("grad_norm", 4 * parameters, 4)
    assert moved(ops["step.adam"]) == ("adam", 16 * parameters, (12 + 2) * parameters)


def test_the_first_of_a_step_clears_the_tables_gradient_unless_the_head_wrote_it() -> None:
    """A tied table of [vocabulary, hidden] in fp32 was overwritten by the head's wgrad."""
    x, table = 10 * HIDDEN * 4, VOCAB * HIDDEN * 4
    untied = [
        op.signature
        for op in schedule_of(LLAMA, micros=2).ops()
        if op.role == "embed_bwd" and isinstance(op.signature, Pointwise)
    ]
    written = [signature.bytes_written for signature in untied]
    assert written == [x + table, x // 2, x, x // 2]
    tied = edges_of(schedule_of(replace(LLAMA, tie_word_embeddings=True)))
    assert moved(tied["s0.embed_bwd"]) == ("embedding_bwd", x, x)


def test_a_gradient_that_the_embedding_makes_apart_is_added_once_by_no_slice() -> None:
    job = workload(GPT)
    apart = replace(job, implementation=replace(job.implementation, dense_embedding_grad=True))
    ops = edges_of(build_schedule(GPT, apart, ClusterSpec(tp=2), CUT))
    assert ops["embed_bwd.add"].slice < 0
    assert ops["embed_bwd.add"].writes == ("l0.grad.embed",)


def test_sizes_of_the_edges_values() -> None:
    """Logits keep their memory for their gradient; masks of the embedding lie in x."""
    x, tokens = 10 * HIDDEN * 2, 10
    sizes = sizes_of(schedule_of(GPT))
    assert {name: sizes[name] for name in sizes if name.startswith(("s0.embed", "s0.head"))} == {
        "s0.embed": x, "s0.head.norm": x,
    }  # fmt: skip
    assert sizes["s0.logits"] == tokens * VOCAB * 2
    assert (sizes["s0.loss.max"], sizes["s0.loss.sum"]) == (4 * tokens, 8 * tokens)
    assert (sizes["d.s0.head.norm"], sizes["d.s0.x"]) == (x, x)
    assert sizes["step.norm"] == 4
    assert "d.s0.logits" not in sizes


def test_what_the_edges_read() -> None:
    ops = edges_of(schedule_of(LLAMA))
    expected = {
        "s0.embed": ("w.embed",),
        "s0.embed.post": ("l0.s0.embed.ar",),
        "s0.head.norm": ("l3.s0.x", "w.head.norm"),
        "s0.head.logits": ("l3.s0.head.norm", "w.head.logits"),
        "s0.loss.max": ("l3.s0.logits",),
        "s0.loss.sum": ("l3.s0.logits", "l3.s0.loss.max.ar"),
        "s0.loss.grad": ("l3.s0.logits", "l3.s0.loss.max.ar", "l3.s0.loss.sum.ar"),
        "s0.head.logits_dgrad": ("l3.d.s0.logits", "w.head.logits"),
        "s0.head.logits_wgrad": ("l3.d.s0.logits", "l3.s0.head.norm"),
        "s1.head.logits_wgrad": ("l3.d.s1.logits", "l3.s1.head.norm", "l3.grad.head.s0"),
        "s0.head.norm_bwd": ("l3.d.s0.head.norm.ar", "l3.s0.x", "w.head.norm"),
        "s0.embed_bwd": ("l0.d.s0.x",),
        "s1.embed_bwd": ("l0.d.s1.x", "l0.grad.embed.s0"),
        "step.adam": ("l0.step.norm.ar",),
    }
    assert {name: ops[name].reads for name in expected} == expected
    tied = edges_of(schedule_of(GPT, MEGATRON))
    assert tied["s0.head.logits"].reads[-1] == tied["s0.head.logits_dgrad"].reads[-1] == "w.embed"


def test_the_gradient_norm_reads_every_last_gradient() -> None:
    """Slice 1 adds to slice 0's gradients, so its are the last ones."""
    linears = ("mlp.fc2", "mlp.fc1", "attn.proj", "attn.qkv")
    layers = [f"l{layer}.grad.{linear}.s1" for layer in range(3) for linear in linears]
    ops = edges_of(schedule_of(GPT, dp=2))
    assert ops["step.grad_norm"].reads == (
        *layers, "l3.grad.head", "l0.grad.embed", "l0.step.dp",
    )  # fmt: skip
    assert ops["step.dp.ar"].reads == ops["step.grad_norm"].reads[:-1]


def test_stages_of_the_head_run_over_all_slices() -> None:
    roles = [op.name for op in schedule_of(GPT).ops() if op.role.startswith(("head.", "loss."))]
    stages = [
        ("head.norm", "head.logits", "loss.max", "loss.max.ar"),
        ("loss.sum", "loss.sum.ar"),
        ("loss.grad", "head.logits_dgrad", "head.logits_dgrad.ar", "head.logits_wgrad"),
        ("head.norm_bwd",),
    ]
    assert roles == [f"s{row}.{role}" for stage in stages for row in (0, 1) for role in stage]


def test_edges_stand_where_an_order_has_the_layers_beyond_the_stack() -> None:
    """``inter`` issues slice 0 of a layer before slice 1 of the one before it is done: so does it
    beside the embedding and the head."""
    plan = SlicePlan(order="inter", wgrad="eager")
    at = {op.name: place for place, op in enumerate(schedule_of(GPT, plan).ops())}
    first, last = "l0", f"l{GPT.num_hidden_layers - 1}"
    for earlier, later in (
        (f"{first}.s0.attn.norm", "s1.embed"),
        ("s0.head.logits", f"{last}.s1.mlp.residual"),
        (f"{last}.s1.mlp.fc2_dgrad", "s0.head.norm_bwd"),
        ("s1.embed_bwd", f"{first}.s0.attn.norm_bwd"),
    ):
        assert at[earlier] < at[later], (earlier, later)
    assert at["s1.loss.max"] < at["s0.loss.sum"] < at["s1.loss.sum"] < at["s1.loss.grad"]


@pytest.mark.parametrize(
    ("tokens", "made"),
    [
        (("qkv_dgrad.0", "qkv_wgrad"), (["logits_dgrad"], ["logits_wgrad"])),
        (("qkv_wgrad", "qkv_dgrad.0"), ([], ["logits_dgrad", "logits_wgrad"])),
        (
            ("proj_wgrad", "qkv_dgrad.0", "qkv_dgrad.1", "proj_wgrad", "qkv_wgrad"),
            ([], ["logits_dgrad"], [], ["logits_wgrad"], []),
        ),
    ],
)
def test_the_heads_wgrad_takes_the_first_place_of_a_wgrad_behind_its_dgrad(
    tokens: tuple[str, ...], made: tuple[list[str], ...]
) -> None:
    plan = SlicePlan(row_slices=1, order="intra", wgrad="eager")
    shapes = Shapes(model=GPT, workload=workload(GPT), cluster=ClusterSpec(tp=2), plan=plan)
    edges = Edges(templates=Templates(shapes=shapes))
    found = (edges.instead(HEAD_GRADS, parse_token(f"attn.{token}:0+0")) for token in tokens)
    roles = [
        [op.role.removeprefix("head.") for ops in places for op in ops if op.lane != TP]
        for places in found
    ]
    assert roles == list(made)
