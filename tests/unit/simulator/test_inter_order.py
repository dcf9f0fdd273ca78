"""The ``inter`` order of a middle layer, frozen: DeepSpeed's Domino at edaa722, op by op.

A wait stands where a value is first read. Forward, one line a stage, the all-reduce launched last:
    before: norm a core b→AR out, slice after slice        (Megatron: every AR is waited for)
    now:    compute of one slice · bias+dropout+residual of the other, whose AR it hid · B→AR
"""

from __future__ import annotations

from itertools import groupby

from simulator.build import build_schedule
from simulator.plan import SlicePlan
from simulator.presets import MODELS
from simulator.schedule import Op
from simulator.schedules import fixed_order
from simulator.specs import ClusterSpec, Workload

FORWARD_OPS = [
    # qkv0 core0 | wait AR(mlp1, l-1) bda1 norm1 | B0→AR
    "l5.s0.attn.qkv", "l5.s0.attn.core_attn", "l4.s1.mlp.residual", "l5.s1.attn.norm",
    "l5.s0.attn.proj.0", "l5.s0.attn.proj.ar.0",
    # qkv1 core1 | wait AR(attn0) bda0 norm0 | B1→AR
    "l5.s1.attn.qkv", "l5.s1.attn.core_attn", "l5.s0.attn.residual", "l5.s0.mlp.norm",
    "l5.s1.attn.proj.0", "l5.s1.attn.proj.ar.0",
    # fc1_0 act0 | wait AR(attn1) bda1 norm1 | fc2_0→AR
    "l5.s0.mlp.fc1", "l5.s0.mlp.act", "l5.s1.attn.residual", "l5.s1.mlp.norm",
    "l5.s0.mlp.fc2.0", "l5.s0.mlp.fc2.ar.0",
    # fc1_1 act1 | wait AR(mlp0) bda0 norm0 (l+1) | fc2_1→AR
    "l5.s1.mlp.fc1", "l5.s1.mlp.act", "l5.s0.mlp.residual", "l6.s0.attn.norm",
    "l5.s1.mlp.fc2.0", "l5.s1.mlp.fc2.ar.0",
]  # fmt: skip
BACKWARD_OPS = [
    # fc2_1 wgrad, dgrad | wait AR(qkv0 dgrad, l+1), norm_bwd, residual_bwd of 0 |
    # act_bwd of 1, fc1_1 dgrad→AR, wgrad
    "l5.s1.mlp.fc2_wgrad", "l5.s1.mlp.fc2_dgrad", "l6.s0.attn.norm_bwd", "l5.s0.mlp.residual_bwd",
    "l5.s1.mlp.act_bwd", "l5.s1.mlp.fc1_dgrad.0", "l5.s1.mlp.fc1_dgrad.ar.0", "l5.s1.mlp.fc1_wgrad",
    # fc2_0 wgrad, dgrad | wait a, norm_bwd, residual_bwd of 1 | act0', fc1_0 dgrad→AR, wgrad
    "l5.s0.mlp.fc2_wgrad", "l5.s0.mlp.fc2_dgrad", "l5.s1.mlp.norm_bwd", "l5.s1.attn.residual_bwd",
    "l5.s0.mlp.act_bwd", "l5.s0.mlp.fc1_dgrad.0", "l5.s0.mlp.fc1_dgrad.ar.0", "l5.s0.mlp.fc1_wgrad",
    # B1 wgrad, dgrad | wait b, norm_bwd, residual_bwd of 0 | core1 bwd, qkv1 dgrad→AR, wgrad
    "l5.s1.attn.proj_wgrad", "l5.s1.attn.proj_dgrad",
    "l5.s0.mlp.norm_bwd", "l5.s0.attn.residual_bwd",
    "l5.s1.attn.core_attn_bwd", "l5.s1.attn.qkv_dgrad.0",
    "l5.s1.attn.qkv_dgrad.ar.0", "l5.s1.attn.qkv_wgrad",
    # B0 wgrad, dgrad | wait c, norm_bwd, residual_bwd of 1 (of layer l-1) |
    # core0 bwd, qkv0 dgrad→AR, wgrad
    "l5.s0.attn.proj_wgrad", "l5.s0.attn.proj_dgrad",
    "l5.s1.attn.norm_bwd", "l4.s1.mlp.residual_bwd",
    "l5.s0.attn.core_attn_bwd", "l5.s0.attn.qkv_dgrad.0",
    "l5.s0.attn.qkv_dgrad.ar.0", "l5.s0.attn.qkv_wgrad",
]  # fmt: skip


def inter_ops() -> list[Op]:
    plan = SlicePlan(row_slices=2, order="inter", wgrad="eager")
    workload = Workload(seq_length=1024, micro_batch_size=2)
    model, cluster = MODELS["gpt3-13b"], ClusterSpec(tp=8)
    return list(build_schedule(model, workload, cluster, plan, fixed_order(plan)).ops())


def between(first: str, last: str) -> list[str]:
    """Names of the ops from ``first`` to ``last``, both included."""
    names = [op.name for op in inter_ops()]
    return names[names.index(first) : names.index(last) + 1]


def test_forward_of_a_middle_layer() -> None:
    assert between(FORWARD_OPS[0], FORWARD_OPS[-1]) == FORWARD_OPS


def test_backward_of_a_middle_layer() -> None:
    assert between(BACKWARD_OPS[0], BACKWARD_OPS[-1]) == BACKWARD_OPS


def test_neither_slice_waits_for_its_own_all_reduce_at_once() -> None:
    """Between an all-reduce and its first reader the other slice's GEMMs run."""
    ops = inter_ops()
    place = {op.name: index for index, op in enumerate(ops)}
    reader = {value: op for op in reversed(ops) for value in op.reads}
    for op in ops[place[FORWARD_OPS[0]] : place[FORWARD_OPS[-1]]]:
        if op.lane:
            found = reader[op.writes[0]]
            hidden = ops[place[op.name] + 1 : place[found.name]]
            assert found.slice == op.slice
            assert {o.slice for o in hidden if o.signature.kind == "gemm"} == {1 - op.slice}


def test_every_layer_in_the_middle_is_alike() -> None:
    """The loop repeats: what stands between the same ops of two layers differs in numbers only."""
    up = [between(f"l{i}.s0.attn.qkv", f"l{i}.s1.mlp.fc2.ar.0") for i in range(3, 8)]
    shapes = [[name.partition(".")[2] for name in names] for names in up]
    assert len(list(groupby(shapes))) == 1
