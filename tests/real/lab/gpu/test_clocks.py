"""What is read off a GPU's clock and power: steady states, elasticities, ops' times."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.measure.gpu.loads import Ran, Sample
from lab.gpu.cases import PLANS
from lab.gpu.gaps import burst_us, gap_ns
from lab.gpu.ops import single_gpu_session
from lab.gpu.stage import late_step
from lab.gpu.sustained import by_family, elasticities, op_rows
from simulator.ops import Attention, Gemm, Pointwise
from simulator.specs import ClusterSpec, Workload
from tests.real.domino_tune.runtime.jobs import LLAMA

GEMM, ATTENTION, COPY = Gemm(64, 64, 64), Attention(1, 2, 2, 64, 32), Pointwise("copy", 8, 8)
OPS = (GEMM, COPY, ATTENTION, GEMM)
EMPTY_NS = 500.0


def test_steps_on_a_warm_gpu_count() -> None:
    ran = [Ran(0, 10**9 * at, 1e9 if at < 10 else 2.5e9) for at in range(8, 15)]
    assert late_step(ran, 695.0, 10**10) == {"step_ms": 2500, "step_j": 1737.5}
    assert late_step([], 695.0, 0) == {}


def test_bursts_and_gaps_of_a_step() -> None:
    workload = Workload(seq_length=9, micro_batch_size=2, dtype="fp32")
    session = single_gpu_session(LLAMA, workload, ClusterSpec(tp=2), torch.device("cpu"))
    assert all(took_us > 0 for took_us in burst_us(session).values())
    assert gap_ns([(0, 10, "a"), (12, 5, "b"), (21, 5, "c")]) == 3.0


def test_some_plans_are_withheld() -> None:
    assert len({one.name for one in PLANS}) == len(PLANS)
    withheld = [one.name for one in PLANS if one.withheld]
    assert withheld == ["llama2-13b megatron", f"llama2-13b {PLANS[1].plan.label}"]


def _moments(clocks: list[int]) -> tuple[list[tuple[int, list[float]]], list[Sample]]:
    """Replays at these clocks: GEMMs go with the clock, attention by half, copies not at all."""
    samples = [Sample(1000 * i, mhz, 700.0, 0) for i, mhz in enumerate(clocks)]
    moments = []
    for i, mhz in enumerate(clocks):
        slow = 1980 / mhz
        times = (100e3 * slow, 30e3, 50e3 * slow**0.5, 200e3 * slow)
        moments.append((1000 * i + 1, [one + EMPTY_NS for one in times]))
    return moments, samples


def test_elasticities_are_read_off_a_falling_clock() -> None:
    moments, samples = _moments([1980, 1900, 1700, 1600, 1470])
    found = elasticities(OPS, moments, samples, EMPTY_NS)
    assert found == pytest.approx({"gemm": 1.0, "attention": 0.5, "pointwise": 0.0}, abs=1e-5)


def test_a_steady_clock_tells_none() -> None:
    assert elasticities(OPS, *_moments([1980, 1965, 1980]), EMPTY_NS) == {}


def test_a_replay_is_taken_apart() -> None:
    moments, _ = _moments([1980])
    assert by_family(OPS, moments, 0, EMPTY_NS) == [(0.0, 300.0, 50.0, 30.0)]
    rows = {row["signature"][0]: row for row in op_rows(OPS, moments, EMPTY_NS)}
    assert {kind: row["median_us"] for kind, row in rows.items()} == {
        "gemm": 150.0,  # of both
        "attention": 50.0,
        "pointwise": 30.0,
    }
    assert rows["gemm"]["samples"] == 2
