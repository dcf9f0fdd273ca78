"""Experts in layers: legal orders, bounds, parameters, memory and what dispatchers move."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from domino_tune.store.profiles import load_profile
from simulator.bounds import Bounds
from simulator.build import build_schedule
from simulator.case import Case
from simulator.errors import InfeasiblePlanError
from simulator.greedy import order_of
from simulator.lookup.pointwise import SUMMED
from simulator.memory import peak_bytes, unpiped_memory
from simulator.ops import Collective, Gemm, Pointwise
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.quantized import CAST_KERNELS
from simulator.schedule import EP, TP, Op, check_order
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, MoeDispatcher, Workload
from simulator.token_way import copies
from tests.unit.simulator.cases import KINDS, cost_model, random_case, random_plan

QWEN = replace(MODELS["qwen3-30b-a3b"], num_hidden_layers=4)
DEEPSEEK = replace(MODELS["deepseek-v3"], num_hidden_layers=5)


def case_of(model: Any = QWEN, *, tp: int = 1, dp: int = 8, **more: Any) -> Case:
    named = ("ep", "etp", "cp", "pp", "vpp")
    sizes: dict[str, Any] = {name: more.pop(name) for name in named if name in more}
    told: dict[str, Any] = {"seq_length": 4096, "micro_batch_size": 2, **more}
    workload = Workload(**{"data_parallel": "distributed-optimizer", **told})
    ranks: dict[str, Any] = {"tp": tp, "dp": dp, "ep": 8, **sizes}
    cluster = ClusterSpec(**ranks)
    return Case(model=model, workload=workload, cluster=cluster, profile=load_profile("h100-dgx"))


def ops_of(case: Case, plan: SlicePlan = MEGATRON) -> list[Op]:
    order = order_of(case, plan)
    schedule = build_schedule(case.model, case.workload, case.cluster, plan, order)
    check_order(schedule)
    return list(schedule.ops())


def random_cases(first: int, count: int) -> list[Case]:
    found: list[Case] = []
    for seed in range(first, first + 40 * count):
        rng = random.Random(seed)
        cost = cost_model(rng.choice((0.0, 1.0, 2.0)), rng.random() < 0.5)
        case = random_case(rng, layers=6, micros=2, cost=cost)
        if case.model.num_experts:
            found.append(case)
        if len(found) == count:
            break
    return found


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("first", range(2000, 8000, 2000))
def test_orders_are_legal_and_bounds_hold(first: int) -> None:
    for case in random_cases(first, 6):
        rng = random.Random(repr(case.model))
        bounds = Bounds(case)
        for kind in KINDS:
            plan = random_plan(rng, case, kind)
            ops_of(case, plan)
            assert bounds.lower_bound_ns(plan) <= predict(case, plan).makespan_ns


def test_a_dense_model_sends_no_tokens_to_experts() -> None:
    work = Workload(seq_length=128, micro_batch_size=1)
    shapes = Shapes(
        model=MODELS["gpt3-1.3b"], workload=work, cluster=ClusterSpec(tp=2), plan=MEGATRON
    )
    assert not shapes.exchanges_experts


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2", "deepseek-v3", "gpt-oss-120b"])
def test_one_rank_has_the_models_parameters(name: str) -> None:
    model = MODELS[name]
    work = Workload(seq_length=128, micro_batch_size=1)
    shapes = Shapes(model=model, workload=work, cluster=ClusterSpec(tp=1), plan=MEGATRON)
    padding = shapes.table_parameters - model.vocab_size * model.hidden_size
    assert shapes.held.whole == model.parameters + padding * shapes.tables


def test_experts_are_divided_among_ranks_and_replicated_beyond() -> None:
    shapes = case_of(dp=16).shapes(MEGATRON)
    layer = 3 * 2048 * 768
    assert shapes.held.experts == QWEN.num_hidden_layers * 128 // 8 * layer
    assert shapes.cluster.expert_replicas == 2
    assert shapes.cluster.ep_group == (1, 8)
    assert shapes.cluster.expert_dp_group == (2, 1)
    reductions = {
        op.role: op.signature
        for op in ops_of(case_of(dp=16))
        if isinstance(op.signature, Collective) and op.role.endswith("rs")
    }
    assert reductions["step.dp.experts.rs"].ranks == 2
    assert reductions["step.dp.rs"].ranks == 16


@pytest.mark.parametrize(
    ("dispatcher", "there", "back", "rows"),
    [
        ("alltoall", "all_to_all", "all_to_all", 8),
        ("allgather", "all_gather", "reduce_scatter", 8),
        ("deepep", "deepep_dispatch", "deepep_combine", 5.34),
        ("hybridep", "hybridep_dispatch", "hybridep_combine", 5.34),
    ],
)
def test_what_dispatchers_move(
    dispatcher: MoeDispatcher, there: str, back: str, rows: float
) -> None:
    case = case_of(moe_dispatcher=dispatcher)
    moved = Counter[str]()
    for op in ops_of(case):
        if op.lane == EP and op.layer == 0 and not op.role.endswith("_probs"):
            assert isinstance(op.signature, Collective)
            assert op.signature.size_bytes == pytest.approx(rows * 8192 * 2048 * 2, rel=0.01)
            moved[op.signature.op] += 1
    assert moved == Counter([there, back, there, back])


def test_probabilities_and_counts_move_apart_with_an_all_to_all() -> None:
    """core/transformer/moe/token_dispatcher.py: token_dispatch and preprocess."""
    for dispatcher, expected in (("alltoall", 2), ("hybridep", 0)):
        case = case_of(moe_dispatcher=dispatcher)
        ops = [op for op in ops_of(case) if op.layer == 0]
        moved = [op for op in ops if op.role.endswith("_probs")]
        assert [op.lane for op in moved] == [EP] * expected
        for op in moved:
            assert isinstance(op.signature, Collective)
            assert op.signature.size_bytes == 8192 * 8 * 4
        counts = [op for op in ops if op.role == "mlp.counts"]
        assert [op.lane for op in counts] == [TP] * (expected // 2)
        awaited = [op.role for op in ops if getattr(op.signature, "awaited", False)]
        assert awaited == (["mlp.counts_copy"] if expected else ["mlp.topk"])


def test_experts_rows_are_padded_where_products_are_quantized() -> None:
    """core/transformer/moe/experts.py: quantization_padding; fused kernels pad as they copy."""

    def pads(**changes: Any) -> list[str]:
        found = ops_of(case_of(**changes))
        return [op.role for op in found if op.layer == 0 and op.role.endswith("pad")]

    assert pads(fp8_recipe="tensorwise") == [
        "mlp.dispatch_pad", "mlp.combine_unpad", "mlp.combine_bwd_pad", "mlp.dispatch_bwd_unpad",
    ]  # fmt: skip
    assert pads() == pads(fp8_recipe="tensorwise", moe_dispatcher="hybridep") == []


def test_experts_rows_are_cast_one_expert_after_the_other() -> None:
    case = case_of(fp8_recipe="tensorwise")
    casts = {
        op.role: op.signature.kernels
        for op in ops_of(case)
        if op.role.endswith(".cast") and isinstance(op.signature, Pointwise)
    }
    each = CAST_KERNELS["tensorwise"]
    assert casts["mlp.rows.cast"] == each * case.model.num_experts // case.cluster.ep
    assert casts["attn.norm.cast"] == each


def test_dispatchers_hold_the_sms_they_are_told() -> None:
    for told, held in ((0, 16), (32, 32)):
        case = case_of(moe_dispatcher="hybridep", moe_dispatcher_sms=told)
        moved = {op.signature for op in ops_of(case) if op.lane == EP}
        assert {c.ctas for c in moved if isinstance(c, Collective)} == {held}


def test_a_graph_copies_what_it_reads() -> None:
    """TransformerEngine, pytorch/graph.py; with an all-to-all the rows' gradients, too."""
    scopes = ("attn", "moe_router", "moe_preprocess")
    for dispatcher, rows in (("alltoall", 1 + 8), ("hybridep", 2)):
        case = case_of(moe_dispatcher=dispatcher, cuda_graph_scope=scopes)
        copied = {
            op.role: op.signature.bytes_read
            for op in ops_of(case)
            if "graph_copy" in op.role and isinstance(op.signature, Pointwise)
        }
        size = 8192 * 2048 * 2
        assert copied == {"attn.graph_copy": size, "mlp.graph_copy_bwd": rows * size}


@pytest.mark.parametrize(
    ("dispatcher", "sums"),
    [
        ("alltoall", ["mlp.combine_unpermute", "mlp.dispatch_bwd_unpermute"]),
        ("deepep", ["mlp.combine_unsort", "mlp.dispatch_bwd_unsort"]),
        ("allgather", ["mlp.combine_unsort", "mlp.dispatch_bwd_unsort"]),
        ("hybridep", []),
    ],
)
def test_without_fused_permutation_a_tokens_rows_are_summed_by_index(
    dispatcher: MoeDispatcher, sums: list[str]
) -> None:
    """core/transformer/moe/moe_utils.py: unpermute, and the gradient of index_select in permute."""
    plain = case_of(moe_dispatcher=dispatcher)
    how = replace(plain.workload.implementation, moe_permute_fusion=False)
    apart = replace(plain, workload=replace(plain.workload, implementation=how))
    roles = [
        op.role
        for op in ops_of(apart)
        if op.layer == 0 and isinstance(op.signature, Pointwise) and op.signature.name == SUMMED
    ]
    assert roles == sums
    longer = predict(apart, MEGATRON).makespan_ns - predict(plain, MEGATRON).makespan_ns
    assert longer > 0 if sums else longer == 0


def test_a_token_goes_once_to_each_rank_of_its_experts() -> None:
    assert copies(case_of(ep=1).shapes(MEGATRON)) == 1
    assert copies(case_of(dp=128, ep=128).shapes(MEGATRON)) == pytest.approx(8)
    assert copies(case_of().shapes(MEGATRON)) == pytest.approx(5.34, abs=0.01)


def test_products_of_experts_are_one_call_of_as_many_groups() -> None:
    gemms = [
        (op.role, op.signature)
        for op in ops_of(case_of())
        if isinstance(op.signature, Gemm) and op.signature.groups > 1 and op.layer == 0
    ]
    forward = [one for role, one in gemms if role == "mlp.fc1"]
    assert [(one.groups, one.m, one.n, one.k) for one in forward] == [(16, 4096, 1536, 2048)]
    assert len(gemms) == 6
    assert sum(one.flops for _, one in gemms) == 3 * 2 * 8 * 8192 * 3 * 2048 * 768


def test_the_most_loaded_rank_has_more_rows() -> None:
    even, uneven = case_of(), case_of(moe_imbalance=1.5)
    assert uneven.shapes(MEGATRON).routed_rows(0) == 1.5 * even.shapes(MEGATRON).routed_rows(0)
    assert predict(uneven, MEGATRON).makespan_ns > predict(even, MEGATRON).makespan_ns


def test_experts_need_sharded_tokens_where_tp_divides_layers() -> None:
    with pytest.raises(InfeasiblePlanError, match="needs --sequence-parallel"):
        case_of(tp=2, dp=4, ep=4).shapes(MEGATRON)
    shared = case_of(tp=2, dp=4, ep=4, etp=2)
    assert shared.modes == (True,)
    roles = {op.role for op in ops_of(shared, replace(MEGATRON, sequence_parallel=True))}
    assert {"mlp.dispatch.ag", "mlp.combine.rs"} <= roles
    alone = case_of(tp=2, dp=4, ep=4, etp=1)
    roles = {op.role for op in ops_of(alone, replace(MEGATRON, sequence_parallel=True))}
    assert not {"mlp.dispatch.ag", "mlp.combine.rs"} & roles


def test_merged_weight_gradients_are_refused() -> None:
    plan = SlicePlan(row_slices=2, merge_wgrad=True)
    with pytest.raises(InfeasiblePlanError, match="leave out merged weight gradients"):
        case_of().shapes(plan)


def test_slices_hide_the_exchange() -> None:
    case = case_of(micro_batch_size=4)
    sliced = predict(case, SlicePlan(row_slices=2))
    assert sliced.exposed_ns < 0.8 * predict(case, MEGATRON).exposed_ns


def test_first_layers_are_dense_and_others_have_a_shared_expert() -> None:
    by_layer: dict[int, set[str]] = {}
    for op in ops_of(case_of(DEEPSEEK)):
        if op.role.startswith("mlp.") and op.micro == 0:
            by_layer.setdefault(op.layer, set()).add(op.role)
    assert "mlp.router" not in by_layer[2]
    assert {"mlp.router", "mlp.shared_fc1", "mlp.dispatch"} <= by_layer[3]


def test_latent_attention_has_four_products_before_its_core() -> None:
    ops = {op.role: op.signature for op in ops_of(case_of(DEEPSEEK)) if op.layer == 0}
    sizes = [(ops[f"attn.{name}"].n, ops[f"attn.{name}"].k)  # type: ignore[union-attr]
             for name in ("q_down", "q_up", "kv_down", "kv_up")]  # fmt: skip
    assert sizes == [(1536, 7168), (128 * 192, 1536), (576, 7168), (128 * 256, 512)]
    core = ops["attn.core_attn"]
    assert (core.head_dim, core.v_head_dim) == (192, 128)  # type: ignore[union-attr]
    with pytest.raises(InfeasiblePlanError, match="attn_dgrad_slices = 1"):
        case_of(DEEPSEEK).shapes(SlicePlan(row_slices=2, attn_dgrad_slices=2))


def test_multi_token_prediction_is_a_layer_and_a_head_more() -> None:
    plain = replace(DEEPSEEK, num_nextn_predict_layers=0)
    roles = Counter(op.role for op in ops_of(case_of(DEEPSEEK)))
    before = Counter(op.role for op in ops_of(case_of(plain)))
    more = roles - before
    assert more["mlp.router"] == 1
    assert more["mtp1.head.logits"] == more["mtp1.loss.sum"] == more["mtp1.proj_wgrad"] == 1
    assert peak_bytes(case_of(DEEPSEEK), MEGATRON) > peak_bytes(case_of(plain), MEGATRON)
    shapes = case_of(DEEPSEEK, pp=5, dp=8, ep=8)
    held = [shapes.chunks[rank][0].of(shapes.shapes(MEGATRON)).held for rank in (3, 4)]
    assert held[1].experts == 2 * held[0].experts


def test_slices_add_to_the_gradient_of_the_product_before_a_further_prediction() -> None:
    case = case_of(DEEPSEEK, micro_batch_size=2)  # our own runtime's, which clears no gradients
    plan = SlicePlan(row_slices=2, attn_dgrad_slices=1, sequence_parallel=case.modes[0])
    wgrads = [op.signature for op in ops_of(case, plan) if op.role == "mtp1.proj_wgrad"]
    assert [one.accumulate for one in wgrads] == [False, True]  # type: ignore[union-attr]


def test_ranks_that_share_experts_gather_once() -> None:
    case = case_of(tp=4, dp=2, ep=2, etp=4, moe_dispatcher="allgather")
    plan = replace(MEGATRON, sequence_parallel=True)
    sort = next(op for op in ops_of(case, plan) if op.role == "mlp.dispatch_sort")
    assert isinstance(sort.signature, Pointwise)
    tokens = 8192 // 4 * 8  # of all ranks that have the experts once
    assert sort.signature.bytes_read == tokens * 2048 * 2


def test_memory_names_experts_and_their_copies() -> None:
    """In FP8 without parameters in BF16, beside them the copies of all weights are counted."""
    told: dict[str, Any] = {"fp8_recipe": "tensorwise", "fp8_param_gather": True}
    for model in (QWEN, DEEPSEEK):
        case = case_of(model, ep=2, **told)
        held = unpiped_memory(case, MEGATRON)
        assert min(held) >= 0
        assert held.experts > case.shapes(MEGATRON).held.experts * (2 * 1 + 4)


def test_the_last_stage_of_a_pipeline_looks_up_embeddings_for_further_predictions() -> None:
    case = case_of(DEEPSEEK, pp=5)
    ends = [case.chunks[rank][0].of(case.shapes(MEGATRON)) for rank in (0, 4)]
    assert [one.tables for one in ends] == [1, 2]


def test_a_shared_expert_can_hide_the_exchange() -> None:
    waiting = predict(case_of(DEEPSEEK), MEGATRON)
    beside = predict(case_of(DEEPSEEK, moe_shared_expert_overlap=True), MEGATRON)
    assert beside.exposed_ns < waiting.exposed_ns
    assert beside.makespan_ns < waiting.makespan_ns


def test_biases_of_experts_are_added_by_kernels_of_their_own() -> None:
    """Megatron-LM's core/transformer/moe/experts.py and core/fusions/fused_bias_geglu.py: fc1's
    halves are clamped and put together, each expert's bias times probabilities is added in fp32."""
    model = replace(MODELS["gpt-oss-20b"], num_hidden_layers=1)
    case = case_of(model)
    ops = {op.role: op for op in ops_of(case)}
    rows, experts = 2 * 4096 * 4, 32 // 8
    wide, hidden = rows * 2 * 2880 * 2, rows * 2880 * 2
    passes = {
        "mlp.act_clamp": (2 * wide, 2 * wide, 3),
        "mlp.fc2_bias": (7 * hidden, 7 * hidden, 2 + 2 * experts),
        "mlp.fc2_bias_bwd": (12 * hidden, 8 * hidden, 2 + 6 * experts),
        "mlp.act_clamp_bwd": (4.5 * wide, 3 * wide, 9),
    }
    for role, (read, written, kernels) in passes.items():
        signature = ops[role].signature
        assert isinstance(signature, Pointwise)
        assert (signature.bytes_read, signature.bytes_written) == (read, written)
        assert (signature.kernels, signature.name) == (kernels, "copy")
        assert signature.awaited == (role == "mlp.act_clamp")
    assert ops["mlp.act_clamp"].writes[0] in ops["mlp.act"].reads
    assert ops["mlp.fc2_bias"].writes[0] in ops["mlp.combine_unsort"].reads
    for role in ("mlp.fc2_dgrad", "mlp.fc2_wgrad"):
        assert ops["mlp.fc2_bias_bwd"].writes[0] in ops[role].reads
    plain = case_of(replace(model, mlp_bias=False, swiglu_limit=0.0))
    assert passes.keys().isdisjoint({op.role for op in ops_of(plain)})
    least_ns = sum(read + written for read, written, _ in passes.values()) / 3.35e3
    more_ns = predict(case, MEGATRON).makespan_ns - predict(plain, MEGATRON).makespan_ns
    assert least_ns < more_ns < 2 * least_ns


@pytest.mark.parametrize("plan", [MEGATRON, SlicePlan(row_slices=2), SlicePlan(mlp_col_slices=2)])
@pytest.mark.parametrize("again", ["none", "full", "moe_act"])
def test_experts_with_biases_can_be_sliced_and_recomputed(plan: SlicePlan, again: str) -> None:
    model = replace(MODELS["gpt-oss-20b"], num_hidden_layers=2)
    more: dict[str, Any] = {"recompute": again}
    if again == "moe_act":
        more = {"recompute": "selective", "recompute_modules": ("moe_act",)}
    case = case_of(model, **more)
    roles = Counter(op.role for op in ops_of(case, plan) if op.layer == 0)
    assert roles["mlp.fc2_bias"] == plan.row_slices * plan.mlp_col_slices
    repeated = sum(count for role, count in roles.items() if role == "mlp.act_clamp.again")
    assert repeated == (plan.row_slices if again != "none" else 0), roles
    assert Bounds(case).lower_bound_ns(plan) <= predict(case, plan).makespan_ns
