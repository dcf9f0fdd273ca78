"""Settings for Megatron-Bridge, held against the fields of its configs."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any, Final

import pytest

from domino_tune.results.files import ExportResult
from domino_tune.store.formats.megatron_bridge import bridge_settings
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

FIELDS: Final = {
    "model": {
        "activation_func", "add_bias_linear", "add_qkv_bias", "apply_rope_fusion",
        "attention_backend", "attention_dropout", "bias_activation_fusion", "bias_dropout_fusion",
        "context_parallel_size", "cp_comm_type", "cross_entropy_fusion_impl",
        "cross_entropy_loss_fusion", "ffn_hidden_size",
        "gated_linear_unit", "gradient_accumulation_fusion", "hidden_dropout", "hidden_size",
        "kv_channels", "layernorm_epsilon", "normalization", "num_attention_heads", "num_layers",
        "num_query_groups", "pipeline_model_parallel_layout", "pipeline_model_parallel_size",
        "position_embedding_type", "qk_layernorm", "recompute_granularity", "recompute_method",
        "recompute_modules", "recompute_num_layers", "rope_scaling", "rope_scaling_factor",
        "rotary_base", "seq_length",
        "sequence_parallel", "share_embeddings_and_output_weights", "tensor_model_parallel_size",
        "tp_comm_bulk_dgrad", "tp_comm_bulk_wgrad", "tp_comm_overlap_ag", "tp_comm_overlap_rs",
        "tp_comm_overlap_rs_dgrad", "virtual_pipeline_model_parallel_size", "vocab_size",
        "expert_model_parallel_size", "expert_tensor_parallel_size", "kv_lora_rank",
        "moe_ffn_hidden_size", "moe_flex_dispatcher_backend", "moe_grouped_gemm",
        "moe_layer_freq", "moe_permute_fusion", "moe_router_topk",
        "moe_shared_expert_intermediate_size",
        "moe_token_dispatcher_type", "mtp_num_layers", "multi_latent_attention",
        "moe_deepep_num_sms", "moe_hybridep_num_sms",
        "num_moe_experts", "q_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
    },
    "train": {"micro_batch_size", "global_batch_size"},
    "dataset": {"seq_length"},
    "ddp": {"use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"},
    "optimizer": {
        "exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype", "use_distributed_optimizer",
        "use_precision_aware_optimizer",
    },
}  # fmt: skip
"""Fields of GPTModelProvider and of megatron-core's configs below it, and of the other sections
(Megatron-Bridge 0.3.1, megatron-core 0.16.1)."""
CALLED: Final = {"mixed_precision", "comm_overlap"}


def exported(*args: Any, **named: Any) -> ExportResult:
    return export_plan(plan_file(*args, **named), "megatron-bridge")


def settings(*args: Any, **named: Any) -> dict[str, str]:
    """Return field -> the Python of its value; raise ValueError for an unknown field."""
    (configure,) = (
        node
        for node in ast.parse(exported(*args, **named).document).body
        if isinstance(node, ast.FunctionDef)
    )
    found = {}
    for line in configure.body[1:-1]:
        assert isinstance(line, ast.Assign)
        key = ast.unparse(line.targets[0]).removeprefix("config.")
        section, _, name = key.partition(".")
        if key in found or not (name in FIELDS.get(section, ()) or key in CALLED):
            raise ValueError(key)
        found[key] = ast.unparse(line.value)
    return found


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_preset(name: str) -> None:
    model = MODELS[name]
    plan = SHARDED if model.num_experts else MEGATRON
    found = settings(plan, model=model, workload=replace(WORKLOAD, seq_length=2048))
    assert found["model.num_layers"] == str(model.num_hidden_layers)
    assert found["model.qk_layernorm"] == str(model.qk_norm or model.kv_lora_rank > 0)
    assert found["model.activation_func"].endswith("silu" if model.gated_mlp else "gelu")
    assert found["comm_overlap"] == "comm_overlap.CommOverlapConfig(tp_comm_overlap=False)"


@pytest.mark.parametrize("fused", [True, False])
def test_a_fused_loss_is_that_of_transformer_engine(fused: bool) -> None:
    found = settings(workload=on("megatron-te", cross_entropy_loss_fusion=fused))
    assert found["model.cross_entropy_loss_fusion"] == str(fused)
    assert found.get("model.cross_entropy_fusion_impl") == ("'te'" if fused else None)


def test_llama_31_scales_its_rotary_angles() -> None:
    found = settings(model=replace(LLAMA, rope_scaling_factor=8.0))
    assert (found["model.rope_scaling"], found["model.rope_scaling_factor"]) == ("True", "8.0")


def test_layouts() -> None:
    workload = replace(
        WORKLOAD, grad_accumulation=8, overlap_p2p=True, recompute="full",
        data_parallel="distributed-optimizer", cp_comm="a2a",
    )  # fmt: skip
    found = settings(workload=workload, cluster=ClusterSpec(tp=2, pp=2, vpp=2, cp=2))
    assert found["model.virtual_pipeline_model_parallel_size"] == "2"
    assert "overlap_p2p_comm=True, batch_p2p_comm=False" in found["comm_overlap"]
    assert found["model.cp_comm_type"] == "'a2a'"
    assert found["model.recompute_method"] == "'uniform'"
    assert found["ddp.overlap_param_gather"] == found["ddp.use_distributed_optimizer"] == "True"
    assert found["train.global_batch_size"] == "16"  # 2 sequences, 8 times
    uneven = replace(WORKLOAD, pp_layers=(17, 15))
    found = settings(workload=uneven, cluster=ClusterSpec(tp=4, pp=2))
    assert found["model.pipeline_model_parallel_layout"] == repr(f"E{'t' * 17}|{'t' * 15}L")


def test_precision() -> None:
    found = settings()["mixed_precision"]
    assert found.startswith("MixedPrecisionConfig(bf16=True, params_dtype=torch.bfloat16")
    mxfp8 = replace(WORKLOAD, fp8_recipe="mxfp8", fp8_param_gather=True)
    found = settings(workload=mxfp8)["mixed_precision"]
    assert "fp8_recipe='mxfp8'" in found
    assert "fp8_param_gather=True, reuse_grad_buf_for_mxfp8_param_ag=True" in found
    ends = replace(WORKLOAD, fp8_recipe="nvfp4", num_layers_at_end_in_bf16=2)
    found = settings(workload=ends)["mixed_precision"]
    assert "fp4='e2m1', fp4_recipe='nvfp4', first_last_layers_bf16=True" in found
    assert "num_layers_at_start_in_bf16=0, num_layers_at_end_in_bf16=2" in found


def test_modules_that_are_recomputed() -> None:
    work = replace(WORKLOAD, recompute="selective")
    found = settings(workload=work)
    assert found["model.recompute_modules"] == "['core_attn']"
    found = settings(workload=replace(work, recompute_modules=("layernorm", "mlp")))
    assert found["model.recompute_modules"] == "['layernorm', 'mlp']"


def test_graphs_of_parts_of_layers() -> None:
    settings = bridge_settings(
        plan_file(
            model=MODELS["qwen3-30b-a3b"],
            cluster=ClusterSpec(tp=1, dp=8, ep=8),
            workload=replace(WORKLOAD, cuda_graph_scope=("attn", "moe_router")),
        )
    )
    assert settings["model.cuda_graph_impl"] == "transformer_engine"
    assert settings["model.cuda_graph_scope"] == ["attn", "moe_router"]
    assert settings["rng.te_rng_tracker"] is True
    assert "model.cuda_graph_impl" not in bridge_settings(plan_file())


def test_moments() -> None:
    shared = replace(WORKLOAD, moments_dtype="bf16", data_parallel="distributed-optimizer")
    found = settings(workload=shared)
    assert found["optimizer.use_precision_aware_optimizer"] == "True"
    assert found["optimizer.exp_avg_dtype"] == found["optimizer.exp_avg_sq_dtype"]
    assert found["optimizer.exp_avg_dtype"] == "torch.bfloat16"
    with pytest.raises(InfeasiblePlanError, match="--data-parallel distributed-optimizer"):
        exported(workload=replace(shared, data_parallel="replicas"))


def test_userbuffers() -> None:
    plan = told(USERBUFFERS, "fc2_fprop=pipeline:8:24", "qkv_dgrad=none", "fc1_dgrad=none")
    found = settings(plan)
    assert found["model.sequence_parallel"] == "True"
    assert found["model.tp_comm_bulk_dgrad"] == found["model.tp_comm_bulk_wgrad"] == "False"
    config = found["comm_overlap"]
    assert "tp_comm_overlap=True" in config
    assert "fc2_fprop=comm_overlap.PipelineOverlapCfg(num_sm=24, set_sm_margin=True, " in config
    assert "num_splits=8, cga_size=2)" in config
    assert "qkv_dgrad=None" in config


@pytest.mark.parametrize(
    ("layers", "method", "number"),
    [(0, "uniform", 1), (1, "block", 1), (31, "block", 31), (32, "uniform", 1)],
)
def test_layers_that_are_recomputed(layers: int, method: str, number: int) -> None:
    """Of 32; Megatron's uniform method recomputes all of them, one at a time."""
    found = settings(workload=replace(WORKLOAD, recompute="full", recompute_layers=layers))
    assert found["model.recompute_method"] == repr(method)
    assert found["model.recompute_num_layers"] == str(number)


@pytest.mark.parametrize(
    ("plan", "workload", "cluster", "message"),
    [
        (DOMINO, {}, ClusterSpec(tp=8), "cannot run strategy 'domino'"),
        (ASYNC_TP, {}, ClusterSpec(tp=8), "it runs in torchtitan"),
        (SHARDED, {"data_parallel": "fsdp"}, ClusterSpec(tp=4, dp=2), "does not run FSDP2"),
        (SHARDED, {"pp_schedule": "gpipe"}, ClusterSpec(tp=4, pp=2), "--pp-schedule gpipe"),
        (SHARDED, {"overlap_p2p": True}, ClusterSpec(tp=4, pp=2), "--overlap-p2p"),
        (
            SHARDED,
            {"recompute": "selective", "recompute_layers": 2},
            ClusterSpec(tp=8),
            "--recompute-layers",
        ),
    ],
)
def test_what_it_does_not_run(
    plan: Any, workload: dict[str, Any], cluster: ClusterSpec, message: str
) -> None:
    with pytest.raises(InfeasiblePlanError, match=message) as caught:
        exported(plan, workload=replace(WORKLOAD, **workload), cluster=cluster)
    assert caught.value.reason == "target"
