"""Quantized layers in what is exported to frameworks, and on GPUs that lack a recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domino_tune.requests import SimulateRequest
from domino_tune.store.formats.deepspeed import check_deepspeed
from domino_tune.store.formats.megatron import megatron_arguments
from domino_tune.verbs.resolve import resolve
from simulator.dtypes import Fp8Recipe
from simulator.errors import InfeasiblePlanError, InputError
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload

JOB = Workload(seq_length=2048, micro_batch_size=2, fp8_recipe="tensorwise")
MODEL, TP2 = MODELS["llama3-8b"], ClusterSpec(tp=2)


@pytest.mark.parametrize(
    ("recipe", "flags"),
    [
        ("delayed", {"--fp8-format hybrid", "--fp8-recipe delayed"}),
        ("blockwise", {"--fp8-format hybrid", "--fp8-recipe blockwise"}),
        ("nvfp4", {"--fp4-format e2m1", "--fp4-recipe nvfp4"}),
        ("none", set()),
    ],
)
def test_megatron_is_told_the_recipe(recipe: Fp8Recipe, flags: set[str]) -> None:
    told = megatron_arguments(MODEL, replace(JOB, fp8_recipe=recipe), TP2)
    assert {flag for flag in told if "fp8" in flag or "fp4" in flag} == flags


def test_megatron_is_told_the_layers_in_bf16() -> None:
    job = replace(JOB, num_layers_at_end_in_bf16=2, fp8_param_gather=True)
    told = megatron_arguments(MODEL, job, TP2)
    assert {
        "--first-last-layers-bf16", "--num-layers-at-start-in-bf16 0",
        "--num-layers-at-end-in-bf16 2", "--fp8-param-gather",
    } <= set(told)  # fmt: skip


def test_deepspeed_refuses() -> None:
    with pytest.raises(InfeasiblePlanError, match="--fp8-recipe"):
        check_deepspeed(MODEL, JOB, TP2)


@pytest.mark.parametrize(
    ("profile", "way_out"), [("h100-dgx", "delayed, tensorwise, blockwise"), ("a100-sxm", "leave")]
)
def test_a_gpu_without_the_recipe_is_named(profile: str, way_out: str) -> None:
    asked = SimulateRequest(
        model="llama3-8b", profile=profile, tp=2, seq_length=2048, micro_batch_size=1,
        fp8_recipe="mxfp8",
    )  # fmt: skip
    with pytest.raises(InputError, match=way_out):
        resolve(asked)
