"""Data-parallel collectives: what is reduced, gathered and sharded, when, and how much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.build import build_schedule
from simulator.case import Case
from simulator.dtypes import MomentsDtype
from simulator.memory import static_memory
from simulator.ops import Collective, Pointwise
from simulator.optimizer import DP_BUCKET_PARAMETERS
from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.predict import predict
from simulator.presets import MODELS
from simulator.schedule import COMPUTE, DP, Op, check_order
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, Workload
from tests.unit.simulator.cases import bundled_profile

MODEL = replace(MODELS["llama3-8b"], num_hidden_layers=7)
CLUSTER = ClusterSpec(tp=4, dp=2)
WORKLOAD = Workload(seq_length=512, micro_batch_size=2, data_parallel="distributed-optimizer")
FSDP = replace(WORKLOAD, data_parallel="fsdp")
INTER = SlicePlan(order="inter", wgrad="eager")


def ops_of(workload: Workload = WORKLOAD, plan: SlicePlan = MEGATRON) -> list[Op]:
    schedule = build_schedule(MODEL, workload, CLUSTER, plan)
    check_order(schedule)
    return list(schedule.ops())


def on_lane(ops: list[Op]) -> list[tuple[str, str, int, str]]:
    """(name, op, bytes, dtype) of the data-parallel lane."""
    return [
        (op.name, op.signature.op, op.signature.size_bytes, op.signature.dtype)
        for op in ops
        if isinstance(op.signature, Collective) and op.lane == DP
    ]


def shapes(workload: Workload = WORKLOAD) -> Shapes:
    return Shapes(model=MODEL, workload=workload, cluster=CLUSTER, plan=MEGATRON)


def test_the_distributed_optimizer_gathers_and_scatters_every_parameter_once() -> None:
    """A layer is 54 M parameters a rank, more than a bucket: each has its own."""
    s = shapes()
    assert s.layer_parameters > DP_BUCKET_PARAMETERS
    layer, edges = s.layer_parameters, s.edge_parameters
    backward = [6, 5, 4, 3, 2, 1, 0]
    assert on_lane(ops_of()) == [
        ("embed.dp.ag", "all_gather", 2 * edges, "bf16"),
        *((f"l{i}.dp.ag", "all_gather", 2 * layer, "bf16") for i in range(7)),
        *((f"l{i}.dp.rs", "reduce_scatter", 4 * layer, "fp32") for i in backward),
        ("step.dp.rs", "reduce_scatter", 4 * edges, "fp32"),
        ("step.grad_norm.ar", "all_reduce", 4, "fp32"),
    ]


@pytest.mark.parametrize("plan", [MEGATRON, INTER])
def test_a_layer_waits_for_its_parameters_which_come_a_layer_ahead(plan: SlicePlan) -> None:
    ops = ops_of(plan=plan)
    place = {op.name: index for index, op in enumerate(ops)}
    for layer in range(7):
        norm = next(op for op in ops if op.layer == layer and op.role == "attn.norm")
        assert f"l{layer}.params" in norm.reads
        assert place[f"l{layer}.dp.ag"] < place[norm.name]
    for layer in range(1, 7):
        before = next(op for op in ops if op.layer == layer - 1 and op.role == "attn.qkv")
        assert place[f"l{layer}.dp.ag"] < place[before.name]


def test_a_bucket_of_several_layers_and_what_is_left_over() -> None:
    """Layers of 27 M parameters: two fill a bucket, and the seventh shares one with the edges."""
    half = replace(CLUSTER, tp=8)
    schedule = build_schedule(MODEL, WORKLOAD, half, MEGATRON)
    check_order(schedule)
    s = replace(shapes(), cluster=half)
    layer, edges = s.layer_parameters, s.edge_parameters
    found = [(name, size) for name, _, size, _ in on_lane(list(schedule.ops()))]
    assert found == [
        ("embed.dp.ag", 2 * edges),
        *((f"l{i}.dp.ag", 2 * 2 * layer) for i in (0, 2, 4)), ("l6.dp.ag", 2 * layer),
        *((f"l{i}.dp.rs", 4 * 2 * layer) for i in (5, 3, 1)), ("step.dp.rs", 4 * (layer + edges)),
        ("step.grad_norm.ar", 4),
    ]  # fmt: skip


def test_without_overlap_all_is_at_the_end() -> None:
    late = replace(WORKLOAD, overlap_grad_reduce=False, overlap_param_gather=False)
    s = shapes()
    assert on_lane(ops_of(late)) == [
        ("step.dp.rs", "reduce_scatter", 4 * s.held.whole, "fp32"),
        ("step.grad_norm.ar", "all_reduce", 4, "fp32"),
        ("step.dp.ag", "all_gather", 2 * s.held.whole, "bf16"),
    ]
    assert ops_of(late)[-1].reads == ("l0.step.done",)


def test_accumulation_gathers_in_the_first_micro_batch_and_scatters_in_the_last() -> None:
    found = [name for name, *_ in on_lane(ops_of(replace(WORKLOAD, grad_accumulation=3)))]
    assert {name[:2] for name in found if name.endswith("dp.ag")} == {"m0"}
    assert {name[:2] for name in found if name.endswith("dp.rs")} == {"m2"}


def test_fsdp_gathers_each_layer_for_forward_and_backward_of_every_micro_batch() -> None:
    s = shapes(FSDP)
    found = on_lane(ops_of(replace(FSDP, grad_accumulation=2)))
    layers = [(op, size) for name, op, size, _ in found if ".l" in name]
    assert layers.count(("all_gather", 2 * s.layer_parameters)) == 2 * 2 * 7
    assert layers.count(("reduce_scatter", 4 * s.layer_parameters)) == 2 * 7
    names = [name for name, *_ in found]
    assert names.index("m0.l5.dp.ag_bwd") < names.index("m0.l6.dp.rs"), "a layer ahead"
    dgrad = next(op for op in ops_of(FSDP) if op.role == "mlp.fc2_dgrad" and op.layer == 3)
    assert "l3.params_bwd" in dgrad.reads


def test_replicas_all_reduce() -> None:
    whole = replace(WORKLOAD, data_parallel="replicas")
    assert {op for _, op, *_ in on_lane(ops_of(whole))} == {"all_reduce"}
    assert not on_lane(ops_of(plan=NO_COMM))


def test_gradients_of_two_bytes() -> None:
    small = replace(WORKLOAD, grad_dtype="bf16")
    sizes = [size for _, op, size, dtype in on_lane(ops_of(small)) if op == "reduce_scatter"]
    assert sum(sizes) == 2 * shapes().held.whole


def test_the_step_updates_a_share() -> None:
    share = -(-shapes().held.whole // 2)
    adam = next(op.signature for op in ops_of() if op.role == "step.adam")
    assert adam == Pointwise("adam", 16 * share, 14 * share)


def test_moments_of_fewer_bytes() -> None:
    """Remainders are read and written beside the parameters; moments in FP8 are fp32 meanwhile."""
    share = -(-shapes().held.whole // 2)
    dtypes: tuple[MomentsDtype, ...] = ("bf16", "fp8")
    found = {
        dtype: [op for op in ops_of(replace(WORKLOAD, moments_dtype=dtype)) if op.lane == COMPUTE]
        for dtype in dtypes
    }
    adam = {
        dtype: [op.signature for op in ops if op.role.startswith(("step.adam", "step.moments"))]
        for dtype, ops in found.items()
    }
    assert adam["bf16"] == [Pointwise("adam", 12 * share, 8 * share)]
    wider = Pointwise("copy", 2 * share, 8 * share)
    assert adam["fp8"] == [wider, Pointwise("adam", 16 * share, 12 * share)]
    assert found["fp8"][-1].signature == Pointwise("copy", 16 * share, 2 * share)


def case_of(**work: Any) -> Case:
    return Case(
        model=MODEL, workload=replace(WORKLOAD, **work), cluster=CLUSTER, profile=bundled_profile()
    )


def test_what_is_sharded_in_memory() -> None:
    s = shapes()
    whole = s.held.whole
    share = -(-whole // 2)
    replicas = static_memory(case_of(data_parallel="replicas"), MEGATRON)
    assert replicas[:3] == (2 * whole, 4 * whole, 12 * whole)
    assert static_memory(case_of(), MEGATRON)[:3] == (2 * whole, 4 * whole, 12 * share)
    held = s.edge_parameters + 2 * s.layer_parameters
    assert static_memory(case_of(data_parallel="fsdp"), MEGATRON)[:3] == (
        2 * held, 4 * (share + s.layer_parameters), 12 * share
    )  # fmt: skip


def test_overlap_pays() -> None:
    times = [
        predict(case_of(overlap_grad_reduce=early, overlap_param_gather=early), MEGATRON)[0]
        for early in (True, False)
    ]
    assert times[0] < times[1]
