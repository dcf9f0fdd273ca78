"""What an iteration is made of, on a single CPU rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.base.errors import RunError
from domino_tune.measure.power_law import COMPUTE as KINDS
from domino_tune.measure.probes import launch
from domino_tune.measure.probes.launch import host_costs, mean_costs_us
from domino_tune.runtime.session import Session
from lab.gpu import taken_apart
from lab.gpu.single_gpu_rank import single_gpu_session
from lab.gpu.step_breakdown import StepBreakdown
from lab.gpu.taken_apart import break_down
from simulator.build import build_schedule
from simulator.plan import MEGATRON, SlicePlan
from simulator.schedule import COMPUTE
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.real.domino_tune.runtime.jobs import GPT, LLAMA

TWO = SlicePlan(row_slices=2, order="intra", wgrad="eager")
WORKLOAD = Workload(seq_length=9, micro_batch_size=2, dtype="fp32")
CLUSTER = ClusterSpec(tp=2)


def _session(model: ModelSpec) -> Session:
    return single_gpu_session(model, WORKLOAD, CLUSTER, torch.device("cpu"))


@pytest.mark.parametrize("plan", [MEGATRON, TWO], ids=lambda p: p.label)
def test_an_iteration_is_taken_apart(plan: SlicePlan) -> None:
    found = break_down(_session(LLAMA), plan, 3)
    assert set(found.by_kind_us) == set(KINDS)
    assert all(found.share(kind) > 0 for kind in KINDS)
    assert (found.graph_us, found.why_no_graph) == (None, "a cpu has no CUDA graphs")
    schedule = build_schedule(LLAMA, WORKLOAD, CLUSTER, MEGATRON)
    executed = sum(op.signature.flops for op in schedule.ops())
    again = sum(op.signature.flops for op in schedule.ops() if op.role == "attn.core_attn_bwd") / 5
    assert found.flops == pytest.approx(executed - again)


def test_launch_costs_add_up_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    session = _session(LLAMA)
    step_us, _, by_role = host_costs(session, TWO)
    assert step_us > 0
    costs_us = {role: float(number) for number, role in enumerate(sorted(by_role), 1)}
    monkeypatch.setattr(launch, "host_costs", lambda *args: (5000.0, {}, costs_us))
    ops = [op for op in session.executor(TWO, None).ops if op.lane == COMPUTE]
    counts = Counter(op.signature.kind for op in ops)
    costs = mean_costs_us(session, TWO)
    assert set(costs) == set(counts) == set(KINDS)
    assert sum(costs_us[op.role] for op in ops) < 5000
    assert sum(counts[kind] * costs[kind] for kind in KINDS) == pytest.approx(5000)


def test_shares_are_of_the_faster_way_and_mfu_of_the_peak() -> None:
    one = StepBreakdown(
        label="plan", by_kind_us={"gemm": 50.0, "attention": 10.0, "pointwise": 20.0},
        eager_us=200.0, graph_us=100.0, why_no_graph="", flops=4_000_000_000,
    )  # fmt: skip
    assert one.share("gemm") == 0.5
    assert one.outside == pytest.approx(0.2)
    assert one.mfu(peak_tflops=80.0) == pytest.approx(0.5)  # 40 TFLOP/s


def test_steps_that_come_late_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    lateness: Iterator[bool] = iter([True, False, False, True, False] + [True] * 100)
    monkeypatch.setattr(taken_apart, "was_late", lambda clock: next(lateness))
    assert set(taken_apart._by_kind_us(_session(GPT), MEGATRON, 3)) == set(KINDS)
    with pytest.raises(RunError, match="Only 0 of 6 steps of megatron"):
        taken_apart._by_kind_us(_session(GPT), MEGATRON, 3)
