"""Rows that only compare or draw refuse no answer; ratios are of the machine that is asked of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domino_tune.requests import SimulateRequest, WhatIfRequest
from domino_tune.results.simulate import SimulateResult
from domino_tune.verbs.resolve import Chosen, plan_of, resolve
from domino_tune.verbs.simulate import shortened, simulate_plan
from domino_tune.verbs.whatif import ask
from simulator.memory import held_parameters
from simulator.overlap import Buffers, buffers_of
from simulator.plan import MEGATRON, Strategy

JOB: dict[str, Any] = {
    "model": "llama3-8b", "overrides": ("num_hidden_layers=12",), "profile": "a100-sxm", "tp": 2,
    "seq_length": 2048, "micro_batch_size": 1,
}  # fmt: skip


def _simulated(**asked: Any) -> SimulateResult:
    request = SimulateRequest(**{**JOB, **asked})
    case = resolve(request)
    return simulate_plan(case, Chosen.of(case, plan_of(request, None, case)))


@pytest.mark.parametrize(("pp", "micros", "drawn"), [(3, 9, 6), (2, 8, 4), (4, 12, 4), (3, 3, 3)])
def test_drawings_of_virtual_stages_have_a_multiple_of_the_stages(
    pp: int, micros: int, drawn: int
) -> None:
    result = _simulated(pp=pp, vpp=2 if pp < 4 else 1, grad_accumulation=micros)
    assert shortened(result.case).workload.grad_accumulation == drawn
    assert result.timelines["chosen"].makespan_ns


def test_one_sequence_is_not_sliced_unless_it_is_asked() -> None:
    plain = _simulated()
    assert plain.plan.row_slices == 1
    assert any("slices nothing" in text for text in plain.warnings)
    assert _simulated(slice_dim="sequence").plan.row_slices == 2
    assert _simulated(micro_batch_size=2).plan.row_slices == 2


def test_no_speed_up_is_told_over_a_row_that_is_left_out() -> None:
    result = _simulated(recompute="per-op", implementation="torch", strategy="async-tp")
    assert list(result.variants) == ["baseline", "chosen", "no_comm"]
    assert (result.baseline_no_sp_ms, result.speedup_no_sp) == (None, None)
    assert any("without sequence parallelism is left out" in text for text in result.warnings)


def test_ratios_after_a_what_if_are_of_the_changed_machine() -> None:
    """Compute that is as much slower as the peak is lower has about the same MFU; the law of power
    is not of another GPU, but is of one with other links."""
    question = ask(WhatIfRequest(**JOB, change=("gpu_flops=0.25x",)))
    base, there = question.unchanged(), question.point(0).prediction
    assert base is not None
    assert there is not None
    assert base.mfu is not None
    assert there.mfu is not None
    assert there.mfu == pytest.approx(
        base.mfu * base.iteration_ms / there.iteration_ms / 0.25, rel=1e-9
    )
    assert base.mfu < there.mfu < 1
    assert base.clock_mhz
    assert base.power_w
    assert base.joules_per_token
    assert (there.clock_mhz, there.power_w, there.joules_per_token) == (None, None, None)
    assert any("law of power is not of a GPU" in text for text in there.warnings)
    linked = ask(WhatIfRequest(**JOB, change=("link_bandwidth=2x",))).point(0).prediction
    assert linked is not None
    assert linked.clock_mhz


@pytest.mark.parametrize(
    ("strategy", "told", "buffers"),
    [
        ("megatron", (), Buffers()),
        ("userbuffers", (), Buffers(whole=10)),
        ("userbuffers", ("qkv_fprop=none", "qkv_dgrad=none"), Buffers(whole=7)),
        ("async-tp", (), Buffers(whole=1, shares=2)),
        ("fused", (), Buffers(whole=2)),
    ],
)
def test_buffers_of_a_strategy_are_counted(
    strategy: Strategy, told: tuple[str, ...], buffers: Buffers
) -> None:
    """Ten of tokens × hidden × 2 bytes for userbuffers, as TransformerEngine registers them."""
    assert buffers_of(strategy, told) == buffers
    case = resolve(SimulateRequest(**JOB))
    plain = replace(MEGATRON, sequence_parallel=True)
    rival = replace(plain, strategy=strategy, tp_comm_overlap=told)
    held, without = (held_parameters(case, case.shapes(plan)) for plan in (rival, plain))
    each = 2048 * 4096 * 2
    assert held.buffers - without.buffers == buffers.whole * each + buffers.shares * each // 2
