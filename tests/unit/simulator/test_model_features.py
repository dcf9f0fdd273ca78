"""What Qwen3 and Gemma 2 add to a Llama layer, and ranks that share key-value heads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.build import build_schedule
from simulator.case import Case
from simulator.memory import peak_bytes
from simulator.ops import Attention, Collective, Gemm, Pointwise
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.presets import MODELS
from simulator.schedule import Op
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.unit.simulator.cases import bundled_profile, cost_model, with_cost
from tests.unit.simulator.small_models import (
    CUT,
    GPT,
    LLAMA,
    edges_of,
    ops_of,
    schedule_of,
    sizes_of,
    workload,
)

TOKENS, HIDDEN = 3 * 5, 40
X = TOKENS * HIDDEN * 4
QK = TOKENS * (6 + 2) // 2 * 8 * 4
LOGITS = TOKENS * 256 * 4
"""Bytes on one of two ranks: hidden state, queries and keys, logits (512 with padding)."""
NORMED = replace(LLAMA, qk_norm=True)
GEMMA = replace(
    LLAMA, post_norm=True, mlp_bias=False, scaled_embeddings=True, attn_logit_softcapping=50.0,
    final_logit_softcapping=30.0,
)  # fmt: skip
SHARDED = replace(MEGATRON, sequence_parallel=True)


def moved(op: Op) -> tuple[str, int, int, int]:
    """(name, bytes read, bytes written, column pieces) of a pointwise op."""
    found = op.signature
    assert isinstance(found, Pointwise)
    return found.name, found.bytes_read, found.bytes_written, found.pieces


def reads(op: Op) -> str:
    return " ".join(value.removeprefix("l1.") for value in op.reads)


class TestNormsOfQueriesAndKeys:
    def test_they_stand_between_qkv_and_rope(self) -> None:
        """Values are read from the projection, queries and keys after norm and rope. Backward keeps
        the norm's input beside its output."""
        ops = ops_of(schedule_of(NORMED, MEGATRON))
        assert moved(ops["attn.qk_norm"]) == ("rmsnorm", QK, QK, 1)
        assert moved(ops["attn.qk_norm_bwd"]) == ("rmsnorm_bwd", 2 * QK, QK, 1)
        assert reads(ops["attn.qk_norm"]) == "s0.attn.qkv w.attn.qk_norm"
        assert reads(ops["attn.rope"]) == "s0.attn.qk"
        assert reads(ops["attn.core_attn"]) == "s0.attn.qk.rope s0.attn.qkv"
        assert reads(ops["attn.core_attn_bwd"]) == (
            "d.s0.attn.core_attn s0.attn.qkv s0.attn.qk s0.attn.core_attn"
        )
        assert reads(ops["attn.rope_bwd"]) == "d.s0.attn.qkv.qk_norm.rope"
        assert reads(ops["attn.qk_norm_bwd"]) == "d.s0.attn.qkv.qk_norm s0.attn.qkv w.attn.qk_norm"
        assert reads(ops["attn.qkv_dgrad.0"]) == "d.s0.attn.qkv w.attn.qkv"
        names = list(ops)
        forward = [names.index(f"attn.{name}") for name in ("qkv", "qk_norm", "rope", "core_attn")]
        assert forward == sorted(forward)

    def test_models_without_rope_have_them_too(self) -> None:
        ops = ops_of(schedule_of(replace(GPT, qk_norm=True), MEGATRON))
        size = TOKENS * 6 * 8 * 2
        assert moved(ops["attn.qk_norm"]) == ("layernorm", size, size, 1)
        assert reads(ops["attn.core_attn"]) == "s0.attn.qk s0.attn.qkv"
        assert reads(ops["attn.qk_norm_bwd"]).startswith("d.s0.attn.qkv.qk_norm s0.attn.qkv ")

    def test_backward_works_in_place(self) -> None:
        plain, normed = (sizes_of(schedule_of(model, MEGATRON)) for model in (LLAMA, NORMED))
        gradient = plain.pop("d.s0.attn.qkv.rope")
        assert normed.pop("d.s0.attn.qkv.qk_norm.rope") == gradient
        assert normed.pop("s0.attn.qk") == QK
        assert normed.pop("step.tp") == 3 * 2 * 8 * 4  # gradients, copied together to be summed
        assert normed == plain

    @pytest.mark.parametrize("plan", [MEGATRON, SHARDED])
    def test_each_rank_has_the_gradient_of_its_own_heads(self, plan: SlicePlan) -> None:
        """Megatron-LM sums them over the ranks with and without sequence parallelism."""
        model = replace(NORMED, mlp_bias=False)
        schedule = build_schedule(
            model, replace(workload(model), seq_length=6), ClusterSpec(tp=2), plan
        )
        partial = 3 * 2 * 8 + (3 * 2 * HIDDEN + HIDDEN if plan.sequence_parallel else 0)
        summed = edges_of(schedule)["step.tp.ar"]
        assert summed.signature == Collective("all_reduce", 4 * partial, 1, 2, 0, "fp32")
        assert "step.tp.ar" not in edges_of(schedule_of(model, NO_COMM))
        assert "step.tp.ar" not in edges_of(schedule_of(model, MEGATRON, tp=1))

    def test_a_rank_holds_them_whole(self) -> None:
        for tp in (1, 2):
            one, other = (shapes_of(model, tp).layer_parameters for model in (LLAMA, NORMED))
            assert other - one == 2 * 8

    def test_a_layer_keeps_queries_and_keys_twice(self) -> None:
        """Bytes of one more layer's activations, on a rank of 8."""
        qwen = MODELS["qwen3-8b"]
        plain, normed = (kept_by_a_layer(replace(qwen, qk_norm=norm)) for norm in (False, True))
        assert normed - plain == 4 * 1024 * (32 + 8) // 8 * 128 * 2


class TestNormsBehindBlocks:
    def test_they_stand_on_the_branch(self) -> None:
        ops = ops_of(schedule_of(GEMMA, MEGATRON))
        for block, last, stream in (("attn", "proj", "s0.x"), ("mlp", "fc2", "s0.y")):
            name, piece = f"{block}.post_norm", f"s0.{block}.{last}.0.ar"
            assert moved(ops[name]) == ("rmsnorm", X, X, 1)
            assert reads(ops[name]) == f"{piece} w.{name}"
            assert moved(ops[f"{block}.residual"]) == ("add", 2 * X, X, 1)
            assert reads(ops[f"{block}.residual"]) == f"s0.{name} {stream}"
            assert moved(ops[f"{name}_bwd"]) == ("rmsnorm_bwd", 2 * X, X, 1)
            grad = "l2.d.s0.x" if block == "mlp" else "d.s0.y"
            assert reads(ops[f"{name}_bwd"]) == f"{grad} {piece} w.{name}"
            assert reads(ops[f"{block}.{last}_dgrad"]) == f"d.s0.{name} w.{block}.{last}"
            assert reads(ops[f"{block}.{last}_wgrad"]).startswith(f"d.s0.{name} ")

    def test_dropout_comes_behind_them(self) -> None:
        model = replace(GPT, post_norm=True)
        ops = ops_of(schedule_of(model, MEGATRON))
        assert reads(ops["mlp.residual_bwd"]) == "l2.d.s0.x l2.s0.x"
        assert reads(ops["mlp.post_norm_bwd"]).startswith("d.s0.mlp.residual s0.mlp.fc2.0.ar ")

    def test_column_pieces_are_gathered_first(self) -> None:
        x = 10 * HIDDEN * 4
        ops = ops_of(schedule_of(GEMMA, CUT))
        assert moved(ops["mlp.post_norm"]) == ("rmsnorm", 2 * x, 2 * x, 4)
        assert moved(ops["mlp.post_norm_bwd"]) == ("rmsnorm_bwd", 3 * x, 2 * x, 4)
        assert moved(ops["mlp.residual"]) == ("add", 2 * x, x, 1)

    def test_with_sequence_parallelism_they_see_a_share_of_the_tokens(self) -> None:
        model = replace(GEMMA, name="gpt")
        plan = replace(SHARDED, strategy="megatron")
        schedule = build_schedule(
            model, replace(workload(model), seq_length=6), ClusterSpec(tp=2), plan
        )
        ops, x = ops_of(schedule), 3 * 6 * HIDDEN * 2
        assert moved(ops["attn.post_norm"]) == ("rmsnorm", x // 2, x // 2, 1)
        assert reads(ops["attn.post_norm"]) == "s0.attn.proj.0.rs w.attn.post_norm"
        assert reads(ops["attn.residual_bwd.ag"]) == "d.s0.attn.post_norm"
        partial = 3 * 4 * HIDDEN + HIDDEN
        summed = edges_of(schedule)["step.tp.ar"].signature
        assert summed == Collective("all_reduce", 4 * partial, 1, 2, 0, "fp32")

    def test_a_layer_keeps_what_they_normalise(self) -> None:
        gemma = replace(MODELS["llama3-8b"], post_norm=True)
        more = kept_by_a_layer(gemma) - kept_by_a_layer(MODELS["llama3-8b"])
        assert more == 2 * 4 * 1024 * 4096 * 2


class TestCapsAndFactors:
    def test_logits_are_capped_before_the_loss(self) -> None:
        """The capped logits are a second buffer; gradients go back through it in place."""
        schedule = schedule_of(GEMMA, MEGATRON)
        ops = edges_of(schedule)
        assert moved(ops["s0.head.softcap"]) == ("softcap", LOGITS, LOGITS, 1)
        assert moved(ops["s0.head.softcap_bwd"]) == ("softcap_bwd", 2 * LOGITS, LOGITS, 1)
        chain = {
            "head.softcap": "s0.uncapped", "loss.max": "s0.logits",
            "head.softcap_bwd": "d.s0.logits s0.uncapped",
            "head.logits_dgrad": "d.s0.uncapped w.head.logits",
        }  # fmt: skip
        for name, expected in chain.items():
            assert " ".join(v.removeprefix("l3.") for v in ops[f"s0.{name}"].reads) == expected
        assert ops["s0.head.logits_wgrad"].reads[0] == "l3.d.s0.uncapped"
        sizes = sizes_of(schedule)
        assert sizes["s0.uncapped"] == sizes["s0.logits"] == LOGITS
        assert not {"d.s0.uncapped", "d.s0.logits"} & sizes.keys()

    def test_attention_with_a_cap_counts_as_assumed(self) -> None:
        ops, cost = ops_of(schedule_of(GEMMA, MEGATRON)), cost_model(1.0, False)
        for role in ("attn.core_attn", "attn.core_attn_bwd"):
            capped = ops[role].signature
            assert isinstance(capped, Attention)
            assert capped.softcap
            capped = capped._replace(seq=2048, head_dim=128, dtype="bf16")
            plain = capped._replace(softcap=False)
            assert cost.duration_ns(capped) == cost.duration_ns(plain)
            assert cost.estimate(plain).source != "assumed"
            found = cost.estimate(capped)
            assert (found.source, found.error >= 0.2) == ("assumed", True)

    def test_a_factor_of_the_embeddings_is_one_pass_each_way(self) -> None:
        plain, scaled = (edges_of(schedule_of(model, MEGATRON)) for model in (LLAMA, GEMMA))
        assert moved(plain["s0.embed.post"])[1:3] == (0, 0)
        assert moved(scaled["s0.embed.post"])[1:3] == (X, X)
        more = [
            b - a
            for a, b in zip(
                moved(plain["s0.embed_bwd"])[1:3], moved(scaled["s0.embed_bwd"])[1:3], strict=True
            )
        ]
        assert more == [X, X]


class TestFewerKeyValueHeadsThanRanks:
    """LLAMA has six heads and two kv heads."""

    def test_every_rank_has_one(self) -> None:
        shapes = shapes_of(LLAMA, 6)
        assert (shapes.heads, shapes.kv_heads, shapes.kv_copies) == (1, 1, 3)
        assert shapes.width("qkv") == (1 + 2) * 8
        ops = ops_of(schedule_of(LLAMA, MEGATRON, tp=6))
        assert ops["attn.qkv"].signature == Gemm(TOKENS, 3 * 8, HIDDEN, "forward", "fp32")
        core = Attention(3, 1, 1, 5, 8, True, "forward", "fp32")
        assert ops["attn.core_attn"].signature == core
        assert moved(ops["attn.rope"])[1] == TOKENS * 2 * 8 * 4

    def test_its_weights_are_copied(self) -> None:
        """Six ranks hold two heads' k and v three times, and their bias where there is one."""
        for bias in (False, True):
            model = replace(LLAMA, attention_bias=bias)
            whole, ranks = model.layer_parameters, 6
            norms_and_biases = 2 * HIDDEN + HIDDEN * (1 + bias)
            extra = (ranks - 2) * 2 * 8 * (HIDDEN + bias)
            held = shapes_of(model, ranks).layer_parameters
            assert ranks * (held - norms_and_biases) == whole - norms_and_biases + extra

    def test_gradients_of_the_copies_are_summed(self) -> None:
        ops = edges_of(schedule_of(LLAMA, MEGATRON, tp=6))
        size = 4 * 3 * HIDDEN * 2 * 8
        summed = ops["step.kv.ar"]
        assert summed.signature == Collective("all_reduce", size, 1, 3, 0, "fp32")
        assert summed.writes[0] in ops["step.grad_norm"].reads
        for schedule in (schedule_of(LLAMA, MEGATRON), schedule_of(LLAMA, NO_COMM, tp=6)):
            assert "step.kv.ar" not in edges_of(schedule)

    @pytest.mark.parametrize(
        ("tp", "node", "group"), [(16, 8, (1, 8)), (32, 8, (2, 8)), (24, 8, (3, 4)), (8, 8, (1, 4))]
    )
    def test_ranks_with_the_same_head_follow_each_other(
        self, tp: int, node: int, group: tuple[int, int]
    ) -> None:
        model = replace(LLAMA, num_attention_heads=96, intermediate_size=96)
        cluster = ClusterSpec(tp=tp, ranks_per_node=node)
        shapes = Shapes(model=model, workload=workload(model), cluster=cluster, plan=MEGATRON)
        found = shapes.copies_all_reduce()
        assert (found.nodes, found.per_node) == group


def shapes_of(model: ModelSpec, tp: int) -> Shapes:
    return Shapes(model=model, workload=workload(model), cluster=ClusterSpec(tp=tp), plan=MEGATRON)


def kept_by_a_layer(model: ModelSpec) -> int:
    """Bytes that one more layer adds to the peak, less those of its parameters."""
    case = with_cost(
        Case(
            model=model,
            workload=Workload(seq_length=1024, micro_batch_size=4),
            cluster=ClusterSpec(tp=8),
            profile=bundled_profile(),
        ),
        cost_model(1.0, False),
    )
    deeper = replace(case, model=replace(model, num_hidden_layers=model.num_hidden_layers + 1))
    more = peak_bytes(deeper, MEGATRON) - peak_bytes(case, MEGATRON)
    return more - 18 * case.shapes(MEGATRON).layer_parameters
