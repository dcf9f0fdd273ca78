"""What a host spends on launches, on one CPU rank."""

from __future__ import annotations

import time
from collections import Counter

import pytest
import torch

from domino_tune.measure.laws import COMPUTE as KINDS
from domino_tune.measure.laws import Resumption, WaitStretch
from domino_tune.measure.probes import hosts
from domino_tune.measure.probes.hosts import PausedStep, host_costs, mean_costs_us, stretches_of
from domino_tune.runtime.lanes.groups import PausingLane
from domino_tune.runtime.lanes.lane import all_reduce
from lab.gpu.ops import single_gpu_session
from simulator.ops import Collective, Signature
from simulator.plan import SlicePlan
from simulator.schedule import COMPUTE
from simulator.specs import ClusterSpec, Workload
from tests.real.domino_tune.runtime.jobs import LLAMA

pytest.importorskip("torch")

TWO = SlicePlan(row_slices=2, order="intra", wgrad="eager")
WORKLOAD = Workload(seq_length=9, micro_batch_size=2, dtype="fp32")


def test_launch_costs_add_up_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    session = single_gpu_session(LLAMA, WORKLOAD, ClusterSpec(tp=2), torch.device("cpu"))
    step_us, _, by_role = host_costs(session, TWO)
    assert step_us > 0
    costs_us = {role: float(number) for number, role in enumerate(sorted(by_role), 1)}
    monkeypatch.setattr(hosts, "host_costs", lambda *args: (5000.0, {}, costs_us))
    ops = [op for op in session.executor(TWO, None).ops if op.lane == COMPUTE]
    counts = Counter(op.signature.kind for op in ops)
    costs = mean_costs_us(session, TWO)
    assert set(costs) == set(counts) == set(KINDS)
    assert sum(costs_us[op.role] for op in ops) < 5000
    assert sum(counts[kind] * costs[kind] for kind in KINDS) == pytest.approx(5000)


# The probe of waits -------------------------------------------------------------------------------
# A step is cut at its pauses, and lanes pause as requested.

pytest.importorskip("torch")

OP: Signature = Collective("all_reduce", 1, 1, 2)
OTHER: Signature = Collective("all_reduce", 2, 1, 2)


def test_a_step_is_cut_where_ranks_slept() -> None:
    usual_us = {OP: 100.0, OTHER: 10.0}
    short = [
        (OP, 0.0, 130.0), (OTHER, 20.0, 10.0), (OP, 1050.0, 120.0), (OTHER, 900.0, 11.0),
        (OP, 1101.0, 150.0),
    ]  # fmt: skip
    long = [(OP, 3900.0, 100.0), (OP, 4001.0, 90.0), (OTHER, 5.0, 9.0)]
    steps = [
        PausedStep(pause_s, ops, sum(usual_us[signature] for signature, _, _ in ops))
        for pause_s, ops in ((1e-3, short), (4e-3, long), (1e-3, short[:3]))
    ]
    assert stretches_of(steps, usual_us) == {
        1e-3: [
            WaitStretch(1050.0, (Resumption(100.0, 20.0), Resumption(10.0, 1.0))),
            WaitStretch(1101.0, (Resumption(100.0, 50.0),)),
            WaitStretch(1050.0, (Resumption(100.0, 20.0),)),
        ],
        4e-3: [WaitStretch(4001.0, (Resumption(100.0, -10.0), Resumption(10.0, -1.0)))],
    }


def test_a_step_without_waits_tells_nothing() -> None:
    assert stretches_of([PausedStep(1e-3, [(OP, 0.0, 100.0)], 100.0)], {OP: 100.0}) == {}


def test_a_machine_that_is_slower_just_then_loses_nothing_to_waits() -> None:
    step = PausedStep(1e-3, [(OP, 1050.0, 120.0), (OTHER, 0.0, 12.0)], steady_us=132.0)
    found = stretches_of([step], {OP: 100.0, OTHER: 10.0})
    (stretch,) = found[1e-3]
    assert [op.usual_us for op in stretch.ops] == pytest.approx([120.0, 12.0])
    assert [op.extra_us for op in stretch.ops] == pytest.approx([0.0, 0.0], abs=1e-9)


def test_a_lane_pauses_as_long_as_it_is_set_to_and_once() -> None:
    lane, call = PausingLane(), all_reduce(torch.zeros(4))
    assert lane.issue("x", call).pause_s == 0.0
    lane.pause_s = 0.02
    first, second = (lane.issue("x", call) for _ in range(2))
    began = time.perf_counter()
    first.wait()
    slept = time.perf_counter() - began
    assert slept >= 0.02
    assert (first.pause_s, second.pause_s) == (0.0, 0.02)
