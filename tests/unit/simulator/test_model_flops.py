"""Model FLOPs against Megatron-LM's formula, written as it writes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.case import Case
from simulator.model_flops import flops_per_gpu, mfu, model_flops
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload
from tests.unit.simulator.cases import bundled_profile


def case_of(name: str, tp: int = 8, dp: int = 1) -> Case:
    workload = Workload(seq_length=2048, micro_batch_size=4, grad_accumulation=3)
    return Case(
        model=MODELS[name], workload=workload, cluster=ClusterSpec(tp=tp, dp=dp),
        profile=bundled_profile(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "vocab"), [("gpt3-13b", 51_200), ("llama3-8b", 129_024), ("llama2-70b", 32_768)]
)
def test_megatrons_formula(name: str, vocab: int) -> None:
    """12·B·s·L·h²·((1 + kv/heads + s/h)·d·heads/h + (ffn/h)·(1.5 if gated) + V/(2·L·h)), with the
    vocabulary padded to a multiple of 128 × tp."""
    case = case_of(name)
    m, batch, length = case.model, 12, 2048
    h, layers = m.hidden_size, m.num_hidden_layers
    projection = m.head_dim * m.num_attention_heads / h
    attention = (1 + m.num_key_value_heads / m.num_attention_heads + length / h) * projection
    mlp = m.intermediate_size / h * (1.5 if m.gated_mlp else 1)
    expected = 12 * batch * length * layers * h**2 * (attention + mlp + vocab / (2 * layers * h))
    assert model_flops(case) == pytest.approx(expected, rel=1e-12)


def test_replicas_add_and_ranks_share() -> None:
    one, two = case_of("gpt3-13b"), case_of("gpt3-13b", dp=2)
    assert model_flops(two) == 2 * model_flops(one)
    assert flops_per_gpu(one, 10**9) == flops_per_gpu(two, 10**9) == model_flops(one) / 8


def test_mfu_is_over_the_dense_peak_of_the_dtype() -> None:
    case = case_of("gpt3-13b")
    second = 10**9
    peak = bundled_profile().machine.peak_tflops["bf16"] * 1e12
    assert mfu(case, second) == pytest.approx(model_flops(case) / 8 / peak)
    machine = replace(case.profile.machine, peak_tflops={})
    assert mfu(replace(case, profile=replace(case.profile, machine=machine)), second) is None
