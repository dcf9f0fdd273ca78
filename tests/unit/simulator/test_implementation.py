"""Implementations: what their keys add to a schedule, to its time and to its memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from simulator.build import build_schedule
from simulator.case import Case
from simulator.dtypes import Dtype
from simulator.errors import InputError
from simulator.greedy import order_of
from simulator.implementation import (
    IMPLEMENTATIONS,
    KEYS,
    NAMES,
    Implementation,
    changed,
)
from simulator.lookup.attention import DETERMINISTIC
from simulator.memory import peak_memory
from simulator.ops import Attention, Collective, Gemm, Pointwise
from simulator.plan import MEGATRON, SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.schedule import COMPUTE, Op, check_order
from simulator.specs import ClusterSpec, Recompute, Workload
from tests.unit.simulator.cases import bundled_profile
from tests.unit.simulator.small_models import GPT, LLAMA, value_bytes

OURS = IMPLEMENTATIONS["domino-tune"]
TE = IMPLEMENTATIONS["megatron-te"]
UNFUSED = replace(OURS, flash_attention=False)
SHARDED = replace(MEGATRON, sequence_parallel=True)


def ops_of(
    implementation: Implementation, model: Any = LLAMA, *, tp: int = 2, dp: int = 1,
    micros: int = 1, plan: SlicePlan = SHARDED, recompute: Recompute = "none",
) -> list[Op]:  # fmt: skip
    """All ops of a model of two layers."""
    model = replace(model, num_hidden_layers=2, max_position_embeddings=8)
    work = Workload(
        seq_length=8, micro_batch_size=2, grad_accumulation=micros, recompute=recompute,
        data_parallel="distributed-optimizer", implementation=implementation,
    )  # fmt: skip
    schedule = build_schedule(model, work, ClusterSpec(tp=tp, dp=dp), plan)
    check_order(schedule)
    return list(schedule.ops())


def case_of(implementation: Implementation, **workload: Any) -> Case:
    given = {"seq_length": 2048, "micro_batch_size": 2, **workload}
    return Case(
        model=replace(MODELS["gpt3-13b"], num_hidden_layers=4),
        workload=Workload(implementation=implementation, **given),
        cluster=ClusterSpec(tp=8), profile=bundled_profile(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype", "fused"),
    [
        ("megatron-te", "bf16", True), ("megatron-te", "fp16", True),
        ("megatron-te", "fp32", False), ("torch", "fp32", True), ("domino-tune", "fp32", True),
        ("megatron-2022", "bf16", False),
    ],
)  # fmt: skip
def test_transformer_engine_has_attention_in_one_kernel_for_16_bits_alone(
    name: str, dtype: Dtype, fused: bool
) -> None:
    """Else the scores of all heads take memory, and products make them."""
    work = Workload(
        seq_length=8, micro_batch_size=2, dtype=dtype, implementation=IMPLEMENTATIONS[name]
    )
    model = replace(LLAMA, num_hidden_layers=2, max_position_embeddings=8)
    roles = {op.role for op in build_schedule(model, work, ClusterSpec(tp=2), SHARDED).ops()}
    assert ("attn.scores" not in roles) == work.flash_attention == fused


def test_every_name_has_one_and_its_label() -> None:
    assert tuple(IMPLEMENTATIONS) == NAMES
    for name, implementation in IMPLEMENTATIONS.items():
        assert implementation.name == implementation.label == name
    told = changed(TE, ("nccl_algo=RING", "clip_grad=False"))
    assert told.label == "megatron-te, clip_grad=false, nccl_algo=ring"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("flash=true", "Unknown --implementation-set 'flash'. .*flash_attention"),
        ("clip_grad=maybe", "clip_grad must be true or false, got 'maybe'"),
        ("nccl_algo=tree", "Unknown nccl_algo 'tree'"),
    ],
)
def test_keys_that_cannot_be(change: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        changed(OURS, (change,))
    with pytest.raises(InputError, match="Unknown --implementation 'nemo'"):
        Implementation(name="nemo")


def test_megatrons_passes_over_gradients_and_parameters() -> None:
    roles = Counter(op.role for op in ops_of(TE, dp=2, micros=3))
    ours = Counter(op.role for op in ops_of(OURS, dp=2, micros=3))
    more = roles - ours
    assert dict(more) == {
        "zero_grads": 1, "embed_bwd.add": 3, "step.dp.check_grads": 1, "step.dp.scale_grads": 1,
        "step.clip_grad": 1, "step.copy_params": 1,
    }  # fmt: skip
    alone = Counter(op.role for op in ops_of(TE, dp=1))
    assert alone["step.check_grads"] == 1
    assert not any("scale_grads" in role for role in alone)
    logged = replace(TE, log_params_norm=True, log_num_zeros_in_grad=True)
    assert Counter(op.role for op in ops_of(logged)) - alone == {
        "step.params_norm": 1, "step.num_zeros": 1,
    }  # fmt: skip


def test_cleared_gradients_are_added_to_from_the_first_micro_batch_on() -> None:
    def adding(implementation: Implementation) -> list[bool]:
        wgrads = [op.signature for op in ops_of(implementation, micros=2, plan=MEGATRON)]
        return [s.accumulate for s in wgrads if isinstance(s, Gemm) and s.layout == "wgrad"]

    assert set(adding(TE)) == {True}
    half = len(adding(OURS)) // 2
    assert adding(OURS) == [False] * half + [True] * half


def test_gradients_that_are_added_apart() -> None:
    apart = replace(OURS, gradient_accumulation_fusion=False)
    ops = ops_of(apart, micros=2)
    adds = [op for op in ops if op.role.endswith("_wgrad.add")]
    assert len(adds) == 4 * 2 + 1  # the linears of two layers and the head, once
    gemms = [op.signature for op in ops if op.role == "mlp.fc2_wgrad"]
    assert all(isinstance(s, Gemm) and not s.accumulate for s in gemms)
    for op in adds:
        assert isinstance(op.signature, Pointwise)
        elements = op.signature.bytes_written // 4
        assert op.signature.bytes_read == elements * (2 + 4)


def test_kernels_that_are_not_fused_move_more_and_are_launched_more() -> None:
    plain = {op.role: op.signature for op in ops_of(OURS)}
    torch = {op.role: op.signature for op in ops_of(IMPLEMENTATIONS["torch"])}
    for role, kernels in (("attn.norm", 6), ("attn.rope", 10), ("mlp.act", 2)):
        one, many = plain[role], torch[role]
        assert isinstance(one, Pointwise)
        assert isinstance(many, Pointwise)
        assert (one.kernels, many.kernels) == (1, kernels)
        assert many.bytes_read > one.bytes_read
        assert many.bytes_written > one.bytes_written
    cost = case_of(OURS).cost
    one, many = Pointwise("copy", 1 << 20, 1 << 20), Pointwise("copy", 1 << 20, 1 << 20, kernels=3)
    fixed = cost.duration_ns(Pointwise("copy", 0, 0))
    assert cost.duration_ns(many) - cost.duration_ns(one) == pytest.approx(2 * fixed, rel=0.01)
    assert cost.estimate(many).source == "assumed"
    assert cost.launch.of(many) == 3 * cost.launch.of(one)


def test_attention_with_its_scores_in_memory() -> None:
    gpt = replace(GPT, attention_dropout=0.1)
    fused, unfused = ops_of(OURS, gpt), ops_of(UNFUSED, gpt)
    roles = Counter(op.role for op in unfused) - Counter(op.role for op in fused)
    assert set(roles) == {
        "attn.scores", "attn.softmax", "attn.attn_dropout", "attn.values_bwd", "attn.softmax_grad",
        "attn.attn_dropout_bwd", "attn.softmax_bwd", "attn.queries_bwd", "attn.keys_bwd",
    }  # fmt: skip
    gemms = [op.signature for op in unfused if op.role in ("attn.scores", "attn.core_attn")]
    flash = [op.signature for op in fused if op.role == "attn.core_attn"]
    assert not any(isinstance(op.signature, Attention) for op in unfused)
    assert sum(s.flops for s in gemms) == 2 * sum(s.flops for s in flash)  # nothing is masked away


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_unfused_attention_keeps_five_bytes_a_score(dropout: float) -> None:
    """Softmax, dropout's mask and its result: arXiv 2205.05198, equation 1; without dropout two."""
    peaks = []
    for implementation in (OURS, UNFUSED):
        case = case_of(implementation)
        case = replace(case, model=replace(case.model, attention_dropout=dropout))
        peaks.append(peak_memory(case, SHARDED).activations)
    work, model = case_of(OURS).workload, MODELS["gpt3-13b"]
    scores = work.tokens * work.seq_length * model.num_attention_heads // 8
    assert peaks[1] - peaks[0] == 4 * scores * (5 if dropout else 2)


def test_selective_recomputation_drops_the_scores() -> None:
    """A layer more costs what it costs with flash attention; one layer's scores live at a time."""

    def layer_bytes(implementation: Implementation, recompute: Recompute) -> int:
        peaks = []
        for layers in (8, 9):
            model = replace(MODELS["gpt3-13b"], num_hidden_layers=layers, attention_dropout=0.1)
            case = replace(case_of(implementation, recompute=recompute), model=model)
            peaks.append(peak_memory(case, SHARDED).activations)
        return peaks[1] - peaks[0]

    flash = layer_bytes(OURS, "none")
    assert layer_bytes(UNFUSED, "selective") == flash < layer_bytes(UNFUSED, "none")
    roles = {op.role for op in ops_of(UNFUSED, GPT, recompute="selective") if "again" in op.role}
    assert roles == {"attn.scores.again", "attn.softmax.again"}


def test_autograds_empty_gradients() -> None:
    """One of each weight's shape is kept, and one of the head's lives while it is made."""
    case = case_of(TE)
    with_them, without = (
        peak_memory(case_of(replace(TE, dummy_wgrads=dummies)), SHARDED)
        for dummies in (True, False)
    )
    linears = case.shapes(SHARDED).linear_parameters
    assert linears == 5120 * 5120 * 12 // 8
    assert with_them.buffers - without.buffers == 2 * linears
    schedule = build_schedule(case.model, case.workload, case.cluster, SHARDED)
    assert value_bytes(schedule)["grad.head.dummy"] == 2 * 5120 * 51200 // 8


def test_cross_entropy_in_fp32_keeps_its_own_logits() -> None:
    fused, passes = (
        peak_memory(case_of(replace(OURS, cross_entropy_loss_fusion=fusion)), SHARDED)
        for fusion in (True, False)
    )
    assert passes.logits == 3 * fused.logits
    slow, quick = (
        predict(case, SHARDED).compute_ns
        for case in (
            case_of(replace(TE, cross_entropy_loss_fusion=False)),
            case_of(TE),
        )
    )
    assert slow > quick


def test_without_overlap_in_backward_more_is_exposed() -> None:
    for plan in (MEGATRON, SHARDED):
        overlapped, exposed = (
            predict(case_of(replace(TE, tp_backward_overlap=overlap)), plan)
            for overlap in (True, False)
        )
        assert exposed.exposed_ns > overlapped.exposed_ns
        assert exposed.makespan_ns > overlapped.makespan_ns
    domino = SlicePlan(sequence_parallel=True)
    times = []
    for overlap in (True, False):
        case = case_of(replace(TE, tp_backward_overlap=overlap))
        times.append(predict(case, domino, order_of(case, domino)).makespan_ns)
    assert times[0] == times[1]


def test_a_ring_is_a_scatter_and_a_gather() -> None:
    table = bundled_profile().collective_table()
    size = 64 << 20
    reduce = Collective("all_reduce", size, 1, 8)
    ring = table.estimate(reduce._replace(algo="ring"))
    parts = [table.estimate(Collective(op, size, 1, 8)) for op in ("reduce_scatter", "all_gather")]
    assert ring.source == "assumed"
    assert table.estimate(reduce).duration_us < ring.duration_us
    assert max(p.duration_us for p in parts) < ring.duration_us < sum(p.duration_us for p in parts)
    gather = Collective("all_gather", size, 1, 8)
    assert table.estimate(gather._replace(algo="ring")) == table.estimate(gather)


def test_a_fixed_order_of_sums_slows_attention_backward() -> None:
    cost = case_of(OURS).cost
    plain = Attention(2, 8, 8, 2048, 128, direction="backward")
    fixed = cost.estimate(plain._replace(deterministic=True))
    assert fixed.duration_us == pytest.approx(DETERMINISTIC * cost.estimate(plain).duration_us)
    assert fixed.source == "assumed"
    ops = ops_of(replace(OURS, deterministic_attention=True))
    cores = [op.signature for op in ops if isinstance(op.signature, Attention)]
    assert [s.deterministic for s in cores] == [s.direction == "backward" for s in cores]


def test_each_key_of_megatron_te_does_something() -> None:
    """A key that changed neither time nor memory would be a dead option."""
    llama = replace(MODELS["llama2-7b"], num_hidden_layers=4, hidden_dropout=0.1)
    case = replace(
        case_of(TE, data_parallel="distributed-optimizer"), model=llama,
        cluster=ClusterSpec(tp=4, dp=2),
    )  # fmt: skip

    def measured(implementation: Implementation, key: str = "") -> tuple[int, tuple[int, ...]]:
        dtype: Dtype = "fp32" if key == "tf32" else "bf16"
        workload = replace(case.workload, implementation=implementation, dtype=dtype)
        one = replace(case, workload=workload)
        plan = replace(MEGATRON, sequence_parallel=False)
        return predict(one, plan).makespan_ns, tuple(peak_memory(one, plan))

    of_experts = {"moe_permute_fusion"}
    for key in set(KEYS) - of_experts:
        others = {"nccl_algo": "ring", "launch_order": "free"}
        value: Any = others.get(key, not getattr(TE, key))
        assert measured(replace(TE, **{key: value}), key) != measured(TE, key), key


def test_compute_ops_are_on_the_compute_lane() -> None:
    for name in NAMES:
        for op in ops_of(IMPLEMENTATIONS[name], dp=2, micros=2):
            assert (op.lane == COMPUTE) == (not isinstance(op.signature, Collective)), op.name
