"""What ranks could not run is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domino_tune.runtime.launch_spec import (
    PLAYED_RECOMPUTE,
    LaunchSpec,
    check_played,
)
from domino_tune.store.shelf import DISK
from domino_tune.verbs.ranks import (
    PATIENCE,
    check_comm_ctas,
    check_predicted_here,
    check_runnable,
    patient,
)
from simulator.case import Case
from simulator.errors import InputError
from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload


def test_gloo_has_no_ctas() -> None:
    check_comm_ctas([0, 0], "gloo", {})
    with pytest.raises(InputError, match=r"comm_ctas = 4 .* gloo does not have; .*--backend nccl"):
        check_comm_ctas([0, 8, 4], "gloo", {})


def test_the_environment_may_not_ask_for_others() -> None:
    check_comm_ctas([0], "nccl", {"NCCL_MAX_CTAS": "16"})
    check_comm_ctas([0, 4, 8], "nccl", {})
    check_comm_ctas([4], "nccl", {"NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": "4"})
    for value in ("16", "many"):
        with pytest.raises(InputError, match=f"NCCL_MAX_CTAS={value} .* Unset NCCL_MAX_CTAS"):
            check_comm_ctas([4], "nccl", {"NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": value})
    with pytest.raises(InputError, match="comm_ctas = 4"):
        check_comm_ctas([4, 8], "nccl", {"NCCL_MIN_CTAS": "4"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data_parallel": "fsdp"}, r"fsdp \(--data-parallel replicas\)"),
        ({"tp_collectives": "multimem"}, r"multimem collectives \(--tp-collectives nccl\)"),
        ({"grad_dtype": "bf16"}, r"bf16 gradients \(--grad-dtype fp32\)"),
        ({"moments_dtype": "bf16"}, r"moments in bf16 \(--set moments_dtype=fp32\)"),
    ],
)
def test_what_the_runtime_does_not_play_is_named_with_the_option_that_it_does(
    fields: dict[str, Any], message: str
) -> None:
    plain = Workload(seq_length=8, micro_batch_size=2)
    case = Case(
        model=MODELS["gpt3-13b"], workload=plain, cluster=ClusterSpec(tp=2),
        profile=DISK.profile("h100-dgx"),
    )  # fmt: skip
    check_predicted_here(replace(case, workload=replace(plain, recompute="full")), "Ask")
    with pytest.raises(InputError, match=f"does not play {message} yet.*Ask with the options"):
        check_predicted_here(replace(case, workload=replace(plain, **fields)), "Ask")


def test_recomputation_of_other_frameworks_is_not_played() -> None:
    for kind in PLAYED_RECOMPUTE:
        check_played(
            Workload(seq_length=8, micro_batch_size=1, recompute=kind), ClusterSpec(tp=2), "Ask"
        )
    single = Workload(seq_length=8, micro_batch_size=1, recompute="per-op")
    with pytest.raises(InputError, match="Ask with --recompute none, selective or full"):
        check_played(single, ClusterSpec(tp=2), "Ask")
    norms = replace(single, recompute="selective", recompute_modules=("layernorm",))
    with pytest.raises(InputError, match="does not compute layernorm again"):
        check_played(norms, ClusterSpec(tp=2), "Ask")


@pytest.mark.parametrize("fields", [{"pp": 2}, {"cp": 2}])
def test_pipelines_and_context_parallelism_are_not_played(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"got tp 2 × .*Ask with --pp 1 and --cp 1"):
        check_played(Workload(seq_length=8, micro_batch_size=1), ClusterSpec(tp=2, **fields), "Ask")


def test_attention_dropout_is_not_run() -> None:
    check_runnable(MODELS["llama2-7b"], 8)
    gpt = MODELS["gpt3-13b"]
    check_runnable(replace(gpt, attention_dropout=0.0), 8)
    with pytest.raises(InputError, match=r"gpt3-13b has attention_dropout = 0\.1.*--set"):
        check_runnable(gpt, 8)
    with pytest.raises(InputError, match="Plan anew"):
        check_runnable(gpt, 8, "Plan anew.")


@pytest.mark.parametrize(
    "extra",
    [
        {"qk_norm": True, "norm": "layernorm"}, {"post_norm": True}, {"scaled_embeddings": True},
        {"attn_logit_softcapping": 50.0}, {"final_logit_softcapping": 30.0},
    ],
)  # fmt: skip
def test_what_the_runtime_does_not_play_is_named(extra: dict[str, Any]) -> None:
    model = replace(MODELS["llama2-7b"], **extra)
    with pytest.raises(
        InputError, match=rf"llama2-7b has {next(iter(extra))}, .*without real runs"
    ):
        check_runnable(model, 8)


def test_a_gated_gelu_is_not_played() -> None:
    model = replace(MODELS["llama2-7b"], hidden_act="gelu")
    with pytest.raises(InputError, match="has a gated MLP with gelu"):
        check_runnable(model, 8)


def test_key_value_heads_are_not_copied_on_real_ranks() -> None:
    check_runnable(MODELS["llama3-8b"], 8)
    with pytest.raises(InputError, match=r"num_key_value_heads = 8, fewer than tp = 16.*--tp 8"):
        check_runnable(MODELS["llama3-8b"], 16)


def test_patience_grows_with_what_is_predicted() -> None:
    spec = LaunchSpec(tp=2)
    assert patient(spec, 1e9) == spec
    assert patient(spec, 60e9).hang_timeout_s == pytest.approx(60 * PATIENCE)
