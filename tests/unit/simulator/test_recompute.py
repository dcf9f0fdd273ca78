"""Recomputation: what backward computes again, what it reads, and what need not be kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from simulator.build import build_schedule
from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError
from simulator.greedy import order_of
from simulator.issue_order import AGAIN, FORWARD_FRAGMENTS, backward_fragments
from simulator.memory import peak_memory
from simulator.model_flops import model_flops
from simulator.ops import Gemm
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.schedule import DP, Op, check_order
from simulator.specs import ClusterSpec, Recompute, Workload
from tests.unit.simulator.cases import bundled_profile
from tests.unit.simulator.small_models import CUT, GPT, LLAMA

SHARDED = replace(MEGATRON, sequence_parallel=True)
INTER = SlicePlan(order="inter", wgrad="eager", sequence_parallel=True)


def ops_of(recompute: Recompute, plan: SlicePlan = SHARDED, model: Any = LLAMA) -> list[Op]:
    """The ops of layer 1, of three."""
    model = replace(model, max_position_embeddings=8)
    work = Workload(seq_length=8, micro_batch_size=3, recompute=recompute)
    schedule = build_schedule(model, work, ClusterSpec(tp=2), plan)
    check_order(schedule)
    return [op for op in schedule.ops() if op.layer == 1]


@pytest.mark.parametrize("plan", [MEGATRON, SHARDED, INTER, CUT])
@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_full_repeats_every_op_of_forward_with_its_collectives(plan: SlicePlan, model: Any) -> None:
    plain = ops_of("none", plan, model)
    names = {op.role for op in plain if not op.role.partition(".")[2].endswith(BACKWARD)}
    forward = [op for op in plain if op.role in names]
    again = [op for op in ops_of("full", plan, model) if op.role.endswith(".again")]
    signatures = [(f"{op.role}.again", op.slice, op.piece, op.signature) for op in forward]
    assert sorted(map(repr, signatures)) == sorted(
        repr((op.role, op.slice, op.piece, op.signature)) for op in again
    )


BACKWARD = ("_bwd", "_dgrad", "_wgrad", "_bwd.ag", "_dgrad.ar", "_dgrad.rs", ".ag_bwd")


def test_backward_reads_what_was_recomputed() -> None:
    for op in ops_of("full", INTER, GPT):
        kept = [name for name in op.reads if name.startswith("l1.s")]
        if op.role.endswith(BACKWARD):
            assert all(name.endswith((".x", ".ag_bwd")) for name in kept), op.name
    core = next(op for op in ops_of("selective") if op.role == "attn.core_attn_bwd")
    assert "l1.again.s0.attn.core_attn" in core.reads
    assert "l1.s0.attn.qkv" in core.reads


def test_selective_repeats_the_attention_core_before_its_backward() -> None:
    roles = [op.role for op in ops_of("selective")]
    assert [role for role in roles if role.endswith(".again")] == ["attn.core_attn.again"]
    assert roles[roles.index("attn.core_attn.again") + 1] == "attn.core_attn_bwd"


def case_of(recompute: Recompute, **given: Any) -> Case:
    return Case(
        model=MODELS["llama3-8b"],
        workload=Workload(seq_length=4096, micro_batch_size=4, recompute=recompute),
        cluster=ClusterSpec(tp=4), profile=bundled_profile(), **given,
    )  # fmt: skip


def test_full_keeps_a_layers_input_alone() -> None:
    """One more layer: [tokens / tp, hidden] in bf16. The attention core alone saves nothing."""
    kept = {}
    for recompute in ("none", "selective", "full"):
        case = case_of(recompute)
        deeper = replace(case, model=replace(case.model, num_hidden_layers=33))
        one, more = (peak_memory(c, SHARDED).activations for c in (case, deeper))
        kept[recompute] = more - one
    tokens = 4 * 4096
    assert kept["full"] == tokens * 4096 * 2 // 4
    assert kept["selective"] == kept["none"] > 10 * kept["full"]


def test_it_takes_the_time_of_another_forward_pass_and_adds_no_model_flops() -> None:
    times = {kind: predict(case_of(kind), SHARDED)[0] for kind in ("none", "selective", "full")}
    assert times["none"] < times["selective"] < times["full"]
    assert 1.2 < times["full"] / times["none"] < 1.4
    assert model_flops(case_of("full")) == model_flops(case_of("none"))


def test_greedy_plans_it_and_hides_it() -> None:
    case, plan = case_of("full"), SlicePlan(sequence_parallel=True)
    order = order_of(case, plan)
    again = [t for t in order.backward.tokens if t.fragment.endswith(AGAIN)]
    assert len(again) == 2 * sum(map(len, FORWARD_FRAGMENTS.values()))
    found, base = predict(case, plan), predict(case, SHARDED)
    assert found.exposed_ns < base.exposed_ns / 4


def test_fragments_of_backward() -> None:
    assert backward_fragments("selective")["attn"][0] == "core_attn_again"
    assert backward_fragments("selective")["mlp"] == backward_fragments("none")["mlp"]
    assert backward_fragments("full")["mlp"][:5] == tuple(
        f"{name}_again" for name in FORWARD_FRAGMENTS["mlp"]
    )


def partial_case(layers: int, recompute: Recompute = "full") -> Case:
    case = case_of(recompute)
    return replace(case, workload=replace(case.workload, recompute_layers=layers))


@pytest.mark.parametrize("plan", [SHARDED, INTER, CUT])
def test_the_first_layers_alone_are_recomputed(plan: SlicePlan) -> None:
    model = replace(LLAMA, num_hidden_layers=5, max_position_embeddings=8)
    work = Workload(seq_length=8, micro_batch_size=3, recompute="full", recompute_layers=2)
    cluster = ClusterSpec(tp=2, dp=2)
    schedule = build_schedule(model, work, cluster, plan)
    check_order(schedule)
    whole = build_schedule(model, replace(work, recompute_layers=0), cluster, plan)
    none = build_schedule(model, replace(work, recompute="none", recompute_layers=0), cluster, plan)
    for layer in range(5):
        found, like = (
            Counter(op.role for op in made.ops() if op.layer == layer and op.lane != DP)
            for made in (schedule, whole if layer < 2 else none)
        )
        assert found == like


def test_each_recomputed_layer_saves_as_much_and_costs_as_much() -> None:
    cases = [partial_case(layers) for layers in (8, 16, 24)]
    held = [peak_memory(case, SHARDED).activations for case in cases]
    times = [predict(case, SHARDED).makespan_ns for case in cases]
    assert held[0] - held[1] == held[1] - held[2] > 0
    assert times[1] - times[0] == pytest.approx(times[2] - times[1], rel=1e-3)
    assert predict(case_of("none"), SHARDED).makespan_ns < times[0]
    assert times[2] < predict(case_of("full"), SHARDED).makespan_ns


def test_all_layers_are_all_layers() -> None:
    whole, counted = case_of("full"), partial_case(32)
    assert predict(counted, SHARDED) == predict(whole, SHARDED)
    assert peak_memory(counted, SHARDED) == peak_memory(whole, SHARDED)


def test_layers_that_cannot_be() -> None:
    with pytest.raises(
        InputError, match="--recompute-layers needs --recompute full or selective, got none"
    ):
        Workload(seq_length=8, micro_batch_size=1, recompute_layers=2)
    with pytest.raises(InputError, match="--recompute-layers = 33, but llama3-8b has 32 layers"):
        partial_case(33)


PER_OP_AGAIN = Counter(
    [
        "attn.norm", "attn.norm.ag", "attn.qkv", "attn.rope", "attn.residual", "mlp.norm",
        "mlp.norm.ag", "mlp.fc1", "mlp.act",
    ]
)  # fmt: skip


def test_per_op_repeats_what_torchtitan_does_not_keep() -> None:
    ops = ops_of("per-op")
    again = [op for op in ops if op.role.endswith(".again")]
    assert Counter(op.role.removesuffix(".again") for op in again) == PER_OP_AGAIN
    gemms = {op.role: op.signature for op in ops if isinstance(op.signature, Gemm)}
    kv_size = LLAMA.num_key_value_heads * LLAMA.head_dim // 2
    assert gemms["attn.qkv.again"].n == kv_size
    assert gemms["mlp.fc1.again"].n == LLAMA.intermediate_size // 2 == gemms["mlp.fc1"].n // 2


def test_per_op_gathers_once_in_backward() -> None:
    ops = {op.role: op for op in ops_of("per-op")}
    assert not any(role.endswith(".ag_bwd") for role in ops)
    assert "l1.again.s0.attn.norm.ag" in ops["attn.qkv_wgrad"].reads
    kept = {"l1.s0.attn.qkv", "l1.s0.attn.core_attn", "l1.again.s0.attn.qkv"}
    assert kept <= set(ops["attn.core_attn_bwd"].reads)
    assert {"l1.s0.mlp.fc1", "l1.again.s0.mlp.fc1"} <= set(ops["mlp.act_bwd"].reads)
    assert "l1.again.s0.mlp.act" in ops["mlp.fc2_wgrad"].reads


def test_an_ungated_mlp_gathers_for_its_wgrad_alone() -> None:
    roles = [op.role for op in ops_of("per-op", model=GPT)]
    rival = replace(SHARDED, strategy="async-tp")
    for found in (roles, [op.role for op in ops_of("per-op", rival, GPT)]):
        assert "mlp.norm.ag.again" in found
        assert "mlp.fc1.again" not in found
        assert "attn.rope.again" not in found


def test_async_tp_hides_the_gathers_behind_recomputed_gemms() -> None:
    roles = Counter(op.role for op in ops_of("per-op", replace(SHARDED, strategy="async-tp")))
    assert roles["attn.qkv.copy.again"] == roles["mlp.fc1.copy.again"] == 1  # of two ranks
    assert roles["attn.qkv.again"] == roles["mlp.fc1.again"] == 2
    assert "attn.norm.ag.again" not in roles


def test_per_op_keeps_every_second_matmul_and_sums() -> None:
    """One more layer: its input, queries, values, what the kernel and the reduce-scatter of the
    projection gave, and half of fc1."""
    case = case_of("per-op")
    deeper = replace(case, model=replace(case.model, num_hidden_layers=33))
    one, more = (peak_memory(c, SHARDED).activations for c in (case, deeper))
    tokens, model, tp = 4 * 4096, case.model, case.cluster.tp
    heads = 2 * model.num_attention_heads + model.num_key_value_heads
    elements = 2 * model.hidden_size + heads * model.head_dim + model.intermediate_size
    assert more - one == tokens * elements * 2 // tp
    assert predict(case_of("none"), SHARDED) < predict(case, SHARDED) < predict(
        case_of("full"), SHARDED
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "plan"), [(ClusterSpec(tp=1), MEGATRON), (ClusterSpec(tp=2), MEGATRON)]
)
def test_per_op_needs_sharded_tokens(cluster: ClusterSpec, plan: SlicePlan) -> None:
    work = Workload(seq_length=8, micro_batch_size=3, recompute="per-op")
    lacking = "tp ≥ 2" if cluster.tp == 1 else "--sequence-parallel"
    with pytest.raises(InfeasiblePlanError, match=f"megatron needs {lacking} for it; use"):
        build_schedule(LLAMA, work, cluster, plan)
