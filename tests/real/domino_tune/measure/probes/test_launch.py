"""What a host spends on launches, on one CPU rank."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.measure.power_law import COMPUTE as KINDS
from domino_tune.measure.probes import launch
from domino_tune.measure.probes.launch import host_costs, mean_costs_us
from lab.gpu.ops import single_gpu_session
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE
from simulator.specs import ClusterSpec, Workload
from tests.real.domino_tune.runtime.jobs import LLAMA

TWO = SlicePlan(row_slices=2, order="intra", wgrad="eager")
WORKLOAD = Workload(seq_length=9, micro_batch_size=2, dtype="fp32")


def test_launch_costs_add_up_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    session = single_gpu_session(LLAMA, WORKLOAD, ClusterSpec(tp=2), torch.device("cpu"))
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
