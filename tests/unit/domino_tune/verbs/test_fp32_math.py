"""Units that multiply fp32 on a GPU: by implementation, at the peak of the units, and reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from domino_tune.requests import SimulateRequest
from domino_tune.requests.options import request_from_text
from domino_tune.results.simulate import SimulateResult
from domino_tune.store.plans import load_plan, save_plan
from domino_tune.store.profiles import load_profile, save_profile
from domino_tune.verbs.resolve import Chosen, plan_of, resolve
from domino_tune.verbs.simulate import simulate, simulate_plan
from simulator.errors import InputError
from simulator.ops import Attention, Gemm

ASKED = {
    "model": "llama2-7b", "profile": "a100-sxm", "tp": "4", "seq_length": "4096",
    "micro_batch_size": "4", "strategy": "megatron", "overrides": "num_hidden_layers=4",
}  # fmt: skip


def answer(**changes: str) -> SimulateResult:
    request = request_from_text(SimulateRequest, {**ASKED, **changes})
    case = resolve(request)
    return simulate_plan(case, Chosen.of(case, plan_of(request, None, case)))


def told(result: SimulateResult) -> str:
    return " ".join(text for text in result.warnings if "multiply fp32" in text)


@pytest.mark.parametrize(
    ("profile", "peak"),
    [
        ("a100-sxm", 156.0),
        ("h100-dgx", 494.7),
        ("h200-sxm", 494.7),
        ("b200-sxm", 1125.0),
        ("gb300-nvl72", 1250.0),
    ],
)
def test_transformer_engine_multiplies_in_tf32(profile: str, peak: float) -> None:
    half = answer(profile=profile, dtype="bf16")
    full = answer(profile=profile, dtype="fp32")
    assert 1.5 < full.iteration_ms / half.iteration_ms < 2.3
    assert full.mfu == pytest.approx(full.tflops_per_gpu / peak)
    assert f"megatron-te tensor cores multiply fp32 in TF32 ({peak:,.4g} TFLOP/s)" in told(full)
    assert "those of bf16 by the ratio of the peaks, which is assumed" in told(full)
    assert not told(half)
    assert full.confidence == "low"


def test_attention_of_scores_in_memory_is_said() -> None:
    words = "Attention in fp32 keeps its scores in memory with megatron-te"
    for dtype, implementation, is_told in (
        ("fp32", "megatron-te", True), ("bf16", "megatron-te", False), ("fp32", "torch", False),
    ):  # fmt: skip
        found = answer(dtype=dtype, implementation=implementation)
        assert any(words in note for note in found.warnings) == is_told


@pytest.mark.parametrize(
    ("recipe", "tokens", "implementation", "is_told"),
    [
        ("delayed", "4088", "megatron-te", True), ("delayed", "4096", "megatron-te", False),
        ("mxfp8", "4128", "megatron-te", True), ("nvfp4", "4128", "megatron-te", True),
        ("nvfp4", "4160", "megatron-te", False), ("delayed", "4088", "torch", False),
        ("delayed", "4008", "megatron-te", True), ("delayed", "4002", "megatron-te", True),
    ],
)  # fmt: skip
def test_tokens_that_transformer_engine_refuses_are_told(
    recipe: str, tokens: str, implementation: str, is_told: bool
) -> None:
    """Of 4 ranks each has a quarter of one sequence, if that divides."""
    found = answer(
        profile="b200-sxm", fp8_recipe=recipe, seq_length=tokens, micro_batch_size="1",
        implementation=implementation,
    )  # fmt: skip
    told = [note for note in found.warnings if "it would refuse this job" in note]
    assert bool(told) == is_told
    if tokens == "4002":
        assert told[0].startswith("A rank has 4,002 tokens without sequence parallelism")


def test_no_more_layers_stay_in_bf16_than_there_are(tmp_path: Path) -> None:
    """Models of a few layers, which stand for all, have as many as they have."""
    ends = {"num_layers_at_start_in_bf16": "2", "num_layers_at_end_in_bf16": "8"}
    with pytest.raises(InputError, match=r"at_end_in_bf16 = 10, but .* has 4 layers; give at most"):
        answer(fp8_recipe="tensorwise", profile="h100-dgx", **ends)
    asked = {
        **ASKED, **ends, "profile": "h100-dgx", "fp8_recipe": "tensorwise", "strategy": "domino",
        "overrides": "num_hidden_layers=12",
    }  # fmt: skip
    found = simulate(request_from_text(SimulateRequest, asked))
    assert found.verdict is not None
    save_plan(found.plan_file, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == found.plan_file


@pytest.mark.parametrize(
    ("implementation", "tf32"),
    [("megatron-te", True), ("megatron-2022", True), ("torch", False), ("domino-tune", False)],
)
def test_it_goes_by_implementation(implementation: str, tf32: bool) -> None:
    usual = answer(dtype="fp32", implementation=implementation)
    changed = f"tf32={str(not tf32).lower()}"
    other = answer(dtype="fp32", implementation=implementation, implementation_set=changed)
    fast, slow = (usual, other) if tf32 else (other, usual)
    assert 4 < slow.iteration_ms / fast.iteration_ms < 8  # less than 156 / 19.5: not all is GEMMs
    assert "TF32" in told(fast)
    assert "CUDA cores multiply fp32 (19.5 TFLOP/s)" in told(slow)
    for one in (fast, slow):
        assert one.mfu is not None
        assert 0.3 < one.mfu < 0.9


def test_a_dtype_that_was_not_timed_is_bf16_at_its_peak() -> None:
    profile = load_profile("a100-sxm")
    table, cores = profile.gemm_table(), profile.attention_table()
    half, tf32 = Gemm(8192, 8192, 8192), Gemm(8192, 8192, 8192, dtype="tf32")
    ratio = table.estimate(tf32).duration_us / table.estimate(half).duration_us
    assert ratio == pytest.approx(2, rel=0.02)
    assert table.estimate(tf32).source == "assumed"
    assert table.estimate(tf32).error > table.estimate(half).error
    assert sum(table.shares(tf32)) == pytest.approx(1)
    narrow = Gemm(8192, 64, 64), Gemm(8192, 64, 64, dtype="tf32")  # fixed costs stay
    assert table.estimate(narrow[1]).duration_us < 2 * table.estimate(narrow[0]).duration_us
    core = Attention(1, 8, 8, 4096, 128)
    wide = cores.estimate(core._replace(dtype="tf32"))
    assert wide.duration_us == pytest.approx(2 * cores.estimate(core).duration_us)
    assert wide.source == "assumed"


def test_cpus_multiply_as_they_did(tmp_path: Path) -> None:
    known = load_profile("h200-sxm")
    path, machine = tmp_path / "cpu.json", replace(known.machine, backend="gloo")
    save_profile(replace(known, name="cpu", power=None, machine=machine), path)
    plain = answer(profile=str(path), dtype="fp32", implementation="domino-tune")
    assert not told(plain)
    other = answer(profile=str(path), dtype="fp32", implementation="megatron-te")
    assert not told(other)
    assert other.workload.math == "fp32"
    with pytest.raises(InputError, match="tf32 is of GPUs"):
        answer(profile=str(path), implementation_set="tf32=true")
