"""NeMo's overrides, held against the keys that it asks its config for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from domino_tune.results.plan import ExportResult
from domino_tune.verbs.plan import export_plan
from simulator.errors import InfeasiblePlanError
from simulator.plan import MEGATRON
from simulator.presets import MODELS
from simulator.specs import ClusterSpec
from tests.support.plans import (
    ASYNC_TP,
    DOMINO,
    LLAMA,
    SHARDED,
    USERBUFFERS,
    WORKLOAD,
    on,
    plan_file,
    told,
)

ASKED: Final = {
    "activation", "activations_checkpoint_granularity", "activations_checkpoint_method",
    "activations_checkpoint_num_layers", "apply_rope_fusion", "attention_backend",
    "attention_dropout", "bias", "bias_activation_fusion", "bias_dropout_add_fusion",
    "context_parallel_size", "encoder_seq_length", "ffn_hidden_size", "global_batch_size",
    "gradient_accumulation_fusion", "hidden_dropout", "hidden_size", "high_freq_factor",
    "kv_channels", "layernorm_epsilon", "low_freq_factor", "max_position_embeddings",
    "mcore_gpt", "megatron_amp_O2", "micro_batch_size", "normalization", "num_attention_heads",
    "num_layers", "num_query_groups", "old_context_len", "optim.grad_sync_dtype", "optim.name",
    "optim.overlap_grad_sync", "optim.overlap_param_sync", "pipeline_model_parallel_size",
    "position_embedding_type", "qkv_bias", "rotary_base", "scale_factor",
    "scale_positional_embedding", "sequence_parallel", "share_embeddings_and_output_weights",
    "tensor_model_parallel_size", "transformer_engine", "ub_tp_comm_overlap",
    "virtual_pipeline_model_parallel_size",
}  # fmt: skip
"""What ``cfg`` is asked for in nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py
and megatron_base_model.py of NeMo 2.2.1."""
CORE: Final = {
    "batch_p2p_comm", "cp_comm_type", "cross_entropy_loss_fusion", "overlap_p2p_comm",
    "qk_layernorm", "tp_comm_bulk_dgrad", "tp_comm_bulk_wgrad", "tp_comm_overlap_ag",
    "tp_comm_overlap_rs", "tp_comm_overlap_rs_dgrad",
}  # fmt: skip
"""Fields of megatron-core's TransformerConfig (0.13.1), which NeMo takes by their names."""


def exported(*args: Any, **named: Any) -> ExportResult:
    return export_plan(plan_file(*args, **named), "nemo")


def settings(*args: Any, **named: Any) -> dict[str, str]:
    """Return key -> value; raise ValueError for a key that NeMo does not ask for."""
    found = {}
    for entry in exported(*args, **named).arguments:
        if entry.startswith("trainer."):
            continue
        key, _, value = entry.removeprefix("++model.").partition("=")
        if key in found or not (key in ASKED | CORE or key.startswith("ub_tp_comm_overlap_cfg.")):
            raise ValueError(entry)
        found[key] = value
    return found


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_preset(name: str) -> None:
    model = MODELS[name]
    found = settings(MEGATRON, model=model, workload=replace(WORKLOAD, seq_length=2048))
    assert found["num_layers"] == str(model.num_hidden_layers)
    assert found["qk_layernorm"] == str(model.qk_norm)
    assert found["activation"] == ("fast-swiglu" if model.gated_mlp else "gelu")
    assert found["ub_tp_comm_overlap"] == "False"


def test_llama_31_scales_its_rotary_angles() -> None:
    found = settings(model=replace(LLAMA, rope_scaling_factor=8.0, rope_low_freq_factor=2.0))
    assert found["scale_positional_embedding"] == "True"
    assert (found["scale_factor"], found["low_freq_factor"]) == ("8.0", "2.0")


def test_layouts() -> None:
    workload = replace(
        WORKLOAD, grad_accumulation=8, overlap_p2p=True, recompute="full",
        data_parallel="distributed-optimizer", cp_comm="a2a",
    )  # fmt: skip
    found = settings(workload=workload, cluster=ClusterSpec(tp=2, pp=2, vpp=2, cp=2))
    assert found["virtual_pipeline_model_parallel_size"] == "2"
    assert (found["overlap_p2p_comm"], found["batch_p2p_comm"]) == ("True", "False")
    assert found["cp_comm_type"] == "a2a"
    assert found["activations_checkpoint_method"] == "uniform"
    assert found["optim.name"] == "mcore_distributed_optim"
    assert found["optim.overlap_param_sync"] == "True"
    some = replace(WORKLOAD, recompute="full", recompute_layers=3)
    found = settings(workload=some)
    assert found["activations_checkpoint_method"] == "block"
    assert found["activations_checkpoint_num_layers"] == "3"


def test_userbuffers() -> None:
    plan = told(USERBUFFERS, "fc2_fprop=pipeline:8:24", "qkv_dgrad=none", "fc1_dgrad=none")
    found = settings(plan)
    assert found["ub_tp_comm_overlap"] == found["sequence_parallel"] == "True"
    assert found["ub_tp_comm_overlap_cfg.fc2_fprop.num_splits"] == "8"
    assert found["ub_tp_comm_overlap_cfg.fc2_fprop.set_sm_margin"] == "True"
    assert found["tp_comm_bulk_dgrad"] == found["tp_comm_bulk_wgrad"] == "False"
    assert not any("qkv_dgrad" in key for key in found)
    partial = exported(told(USERBUFFERS, "fc1_fprop=none"))
    assert any("linear_fc1.ub_overlap_ag_fprop" in note for note in partial.notes)


def test_what_no_override_says() -> None:
    cluster = ClusterSpec(tp=4, dp=4, cuda_graph=True)
    made = exported(workload=on("torch"), cluster=cluster)
    assert made.arguments[:3] == (
        "trainer.precision=bf16", "trainer.devices=8", "trainer.num_nodes=2",
    )  # fmt: skip
    text = "\n".join(made.notes)
    for words in (
        "distributed optimizer only", "one CUDA graph", "kernels of torch",
    ):  # fmt: skip
        assert words in text


@pytest.mark.parametrize(
    ("plan", "workload", "cluster", "message"),
    [
        (DOMINO, {}, ClusterSpec(tp=8), "cannot run strategy 'domino'"),
        (ASYNC_TP, {}, ClusterSpec(tp=8), "it runs in torchtitan"),
        (SHARDED, {"dtype": "fp16"}, ClusterSpec(tp=8), "--dtype bf16"),
        (SHARDED, {"data_parallel": "fsdp"}, ClusterSpec(tp=4, dp=2), "does not run FSDP2"),
        (SHARDED, {"pp_schedule": "gpipe"}, ClusterSpec(tp=4, pp=2), "--pp-schedule gpipe"),
        (SHARDED, {"pp_layers": (17, 15)}, ClusterSpec(tp=4, pp=2), "unequal layers"),
        (SHARDED, {"overlap_p2p": True}, ClusterSpec(tp=4, pp=2), "--overlap-p2p"),
        (
            SHARDED,
            {"recompute": "selective", "recompute_layers": 2},
            ClusterSpec(tp=8),
            "--recompute-layers",
        ),
    ],
)
def test_what_nemo_does_not_run(
    plan: Any, workload: dict[str, Any], cluster: ClusterSpec, message: str
) -> None:
    with pytest.raises(InfeasiblePlanError, match=message) as caught:
        exported(plan, workload=replace(WORKLOAD, **workload), cluster=cluster)
    assert caught.value.reason == "target"
