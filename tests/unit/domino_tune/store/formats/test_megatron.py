"""What is exported to Megatron-LM, read by its own options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from domino_tune.results.files import ExportResult
from domino_tune.verbs.plan import export_plan
from simulator.errors import InfeasiblePlanError
from simulator.implementation import IMPLEMENTATIONS
from simulator.plan import MEGATRON, NO_COMM
from simulator.presets import MODELS
from simulator.specs import ClusterSpec
from tests.support.megatron_options import parsed
from tests.support.plans import (
    ASYNC_TP,
    CLUSTER,
    DOMINO,
    FUSED,
    LLAMA,
    SHARDED,
    USERBUFFERS,
    WORKLOAD,
    on,
    plan_file,
    told,
)

TWO = ClusterSpec(tp=4, dp=2)


def exported(*args: Any, **named: Any) -> ExportResult:
    return export_plan(plan_file(*args, **named), "megatron")


def options(*args: Any, **named: Any) -> dict[str, Any]:
    return parsed(list(exported(*args, **named).arguments))


def said(*args: Any, **named: Any) -> str:
    return "\n".join(exported(*args, **named).notes)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_megatron_reads_every_preset(name: str) -> None:
    found = options(model=MODELS[name], workload=replace(WORKLOAD, seq_length=2048))
    assert found["num_layers"] == MODELS[name].num_hidden_layers
    latent = MODELS[name].kv_lora_rank > 0
    assert ("qk_layernorm" in found) == (MODELS[name].qk_norm or latent)
    assert ("use_rope_scaling" in found) == (MODELS[name].rope_scaling_factor > 1)


def test_llama_31_scales_its_rotary_angles() -> None:
    llama31 = replace(
        LLAMA, rope_scaling_factor=8.0, original_max_position_embeddings=8192,
        max_position_embeddings=131072,
    )  # fmt: skip
    found = options(model=llama31)
    assert found["use_rope_scaling"]
    assert found["rope_scaling_factor"] == 8.0
    assert "another model" not in said(model=llama31)
    other = replace(llama31, original_max_position_embeddings=4096)
    assert "(1.0, 4.0, 4096): as fast, but another model" in said(model=other)


def test_sequences_above_rotary_positions() -> None:
    long = replace(WORKLOAD, seq_length=2 * LLAMA.max_position_embeddings, micro_batch_size=1)
    assert options(workload=long)["max_position_embeddings"] == long.seq_length


def test_biases_that_megatron_has_not() -> None:
    halves = replace(LLAMA, attention_bias=True, proj_bias=True, mlp_bias=False)
    with pytest.raises(InfeasiblePlanError, match="on qkv, proj"):
        exported(model=halves)
    assert options(model=replace(halves, proj_bias=False))["add_qkv_bias"]


@pytest.mark.parametrize(
    ("changes", "wanted", "not_there"),
    [
        ({"data_parallel": "replicas"}, {"overlap_grad_reduce"}, {"overlap_param_gather"}),
        (
            {"data_parallel": "distributed-optimizer"},
            {"overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer"},
            set(),
        ),
        (
            {"data_parallel": "distributed-optimizer", "overlap_grad_reduce": False},
            {"use_distributed_optimizer"},
            {"overlap_grad_reduce", "overlap_param_gather"},
        ),
        (
            {"data_parallel": "fsdp"},
            {"use_torch_fsdp2", "no_gradient_accumulation_fusion"},
            {"overlap_grad_reduce"},
        ),
        ({"grad_dtype": "bf16"}, {"grad_reduce_in_bf16"}, set()),
        (
            {"moments_dtype": "bf16", "data_parallel": "distributed-optimizer"},
            {"use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype"},
            {"main_grads_dtype"},
        ),
        (
            {
                "moments_dtype": "fp8",
                "grad_dtype": "bf16",
                "data_parallel": "distributed-optimizer",
            },
            {"use_precision_aware_optimizer", "main_grads_dtype", "grad_reduce_in_bf16"},
            set(),
        ),
        ({"dtype": "fp16"}, {"fp16", "accumulate_allreduce_grads_in_fp32"}, {"bf16"}),
    ],
)
def test_what_replicas_share(
    changes: dict[str, Any], wanted: set[str], not_there: set[str]
) -> None:
    found = options(workload=replace(WORKLOAD, **changes), cluster=TWO)
    assert wanted <= found.keys()
    assert not not_there & found.keys()


def test_fsdp_has_no_single_launch_queue() -> None:
    sharded = replace(WORKLOAD, data_parallel="fsdp")
    made = exported(workload=sharded, cluster=TWO)
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in made.environment
    assert any("refuses CUDA_DEVICE_MAX_CONNECTIONS=1" in note for note in made.notes)
    alone = exported(workload=sharded)  # nobody shares anything
    assert alone.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    free = on("megatron-te", launch_order="free")
    assert "starts only with CUDA_DEVICE_MAX_CONNECTIONS=1" in said(workload=free)


@pytest.mark.parametrize(
    ("tp", "cp", "order", "noted"),
    [(1, 1, "free", False), (2, 1, "free", True), (1, 2, "free", True), (1, 2, "ordered", False)],
)
def test_one_launch_queue_is_needed_where_ranks_share_a_layer(
    tp: int, cp: int, order: str, noted: bool
) -> None:
    """Its tensor or its context."""
    found = said(
        MEGATRON, workload=on("megatron-te", launch_order=order), cluster=ClusterSpec(tp=tp, cp=cp)
    )
    assert ("starts only with CUDA_DEVICE_MAX_CONNECTIONS=1" in found) == noted


@pytest.mark.parametrize(
    ("vpp", "overlap", "told_so"), [(1, False, False), (2, False, True), (2, True, False)]
)
def test_virtual_stages_say_where_their_messages_do_not_overlap(
    vpp: int, overlap: bool, told_so: bool
) -> None:
    found = options(
        workload=replace(WORKLOAD, overlap_p2p=overlap),
        cluster=ClusterSpec(tp=2, pp=4, vpp=vpp),
    )
    assert ("no_overlap_p2p_communication" in found) == told_so


@pytest.mark.parametrize(
    ("model", "workload", "cluster", "message"),
    [
        (LLAMA, {"data_parallel": "fsdp", "dtype": "fp16"}, TWO, "does not go with fp16"),
        (MODELS["gpt3-1.3b"], {"data_parallel": "fsdp", "seq_length": 2048}, TWO, "tied embeddin"),
        (LLAMA, {"dtype": "fp32", "grad_dtype": "bf16"}, TWO, "--grad-dtype fp32"),
        (LLAMA, {"recompute": "full"}, ClusterSpec(tp=8, cuda_graph=True), "no CUDA graph of full"),
    ],
)
def test_what_excludes_each_other_there(
    model: Any, workload: dict[str, Any], cluster: ClusterSpec, message: str
) -> None:
    with pytest.raises(InfeasiblePlanError, match=message) as caught:
        exported(model=model, workload=replace(WORKLOAD, **workload), cluster=cluster)
    assert caught.value.reason == "target"


def test_kernels_of_the_prediction_are_options() -> None:
    usual = options()
    assert usual["transformer_impl"] == "transformer_engine"
    assert usual["cross_entropy_fusion_impl"] == "te"
    assert "clip_grad" not in usual
    bare = on(
        "megatron-te", flash_attention=False, rope_fusion=False, swiglu_fusion=False,
        bias_dropout_fusion=False, clip_grad=False, gradient_accumulation_fusion=False,
        check_for_nan_in_grad=False, log_params_norm=True, log_num_zeros_in_grad=True,
        nccl_algo="ring", deterministic_attention=True, scale_grads=False,
    )  # fmt: skip
    found = options(workload=bare)
    assert found["attention_backend"] == "unfused"
    assert found["clip_grad"] == 0
    assert {
        "no_rope_fusion", "no_bias_swiglu_fusion", "no_bias_dropout_fusion",
        "no_gradient_accumulation_fusion", "no_check_for_nan_in_loss_and_grad", "log_params_norm",
        "log_num_zeros_in_grad",
    } <= found.keys()  # fmt: skip
    made = exported(workload=bare)
    assert made.environment["NCCL_ALGO"] == "Ring"
    assert made.environment["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] == "0"
    assert "scale_grads=false, for which Megatron-LM has no option" in made.notes[-1]
    assert options(workload=on("megatron-2022"))["transformer_impl"] == "local"
    assert "transformer_impl" not in options(workload=on("torch"))


def test_a_graph_of_the_iteration_checks_no_nan() -> None:
    graph = replace(CLUSTER, cuda_graph=True)
    assert options(cluster=graph)["cuda_graph_scope"] == ["full_iteration"]
    assert "checks for NaN off; the prediction has them" in said(cluster=graph)


PARTS: Final = replace(WORKLOAD, cuda_graph_scope=("attn", "moe_router"))
EXPERTS: Final[dict[str, Any]] = {
    "model": MODELS["qwen3-30b-a3b"],
    "cluster": ClusterSpec(tp=1, dp=8, ep=8),
}


def test_graphs_of_parts_of_layers() -> None:
    found = options(**EXPERTS, workload=PARTS)
    assert found["cuda_graph_impl"] == "transformer_engine"
    assert found["cuda_graph_scope"] == ["attn", "moe_router"]
    assert options(workload=PARTS)["cuda_graph_scope"] == ["attn"], "dense layers have no router"
    assert "cuda_graph_impl" not in options()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recompute": "full"}, "--recompute none or selective"),
        ({"cuda_graph_scope": ("attn", "moe_preprocess")}, "make the plan with both"),
        ({"recompute": "selective", "recompute_modules": ("moe",)}, "other recompute_modules"),
        ({"implementation": IMPLEMENTATIONS["megatron-2022"]}, "--implementation megatron-te"),
    ],
    ids=str,
)
def test_graphs_that_megatron_core_excludes(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InfeasiblePlanError, match=said):
        options(**EXPERTS, workload=replace(PARTS, **changes))


def test_gathers_beside_compute_need_sums_there() -> None:
    apart = replace(WORKLOAD, data_parallel="distributed-optimizer", overlap_grad_reduce=False)
    two = ClusterSpec(tp=4, dp=2)
    assert "overlap_param_gather" not in options(workload=apart, cluster=two)
    assert "--overlap-param-gather is left out" in said(workload=apart, cluster=two)
    neither = replace(apart, overlap_param_gather=False)
    assert "--overlap-param-gather" not in said(workload=neither, cluster=two)


def test_a_domino_plan_says_what_running_unsliced_costs() -> None:
    text = said(DOMINO)
    assert "unsliced, not domino 2x1/1" in text
    assert "1,234.6 ms as planned, 1,345.7 ms unsliced" in text
    assert "unsliced" not in said(SHARDED)


def test_userbuffers_and_their_file() -> None:
    found = options(USERBUFFERS)
    assert found["tp_comm_overlap"]
    assert found["tp_comm_overlap_cfg"] == "userbuffers.yaml"
    assert not any(name.startswith("disable_tp_comm") for name in found)
    assert "`plan export --to te-userbuffers --out userbuffers.yaml`" in said(USERBUFFERS)


@pytest.mark.parametrize(
    ("texts", "switches"),
    [
        (("proj_fprop=none", "fc2_fprop=none"), {"disable_tp_comm_overlap_rs"}),
        (
            ("qkv_fprop=none", "fc1_fprop=none", "proj_dgrad=none", "fc2_dgrad=none"),
            {"disable_tp_comm_overlap_ag"},
        ),
        (
            ("qkv_dgrad=none", "fc1_dgrad=none"),
            {"disable_tp_comm_bulk_dgrad", "disable_tp_comm_bulk_wgrad"},
        ),
        (("qkv_dgrad=pipeline:2:8", "fc1_dgrad=pipeline"), {"tp_comm_overlap_rs_dgrad"}),
        (("fc1_fprop=none",), set()),
    ],
)
def test_switches_of_gemms_without_overlap(texts: tuple[str, ...], switches: set[str]) -> None:
    plan = told(USERBUFFERS, *texts)
    usual = {"tp_comm_overlap", "tp_comm_overlap_cfg"}
    assert {name for name in options(plan) if "tp_comm" in name} - usual == switches
    assert ("linear_fc1.ub_overlap_ag_fprop" in said(plan)) == (texts == ("fc1_fprop=none",))


def test_backward_pipelines_come_in_pairs() -> None:
    with pytest.raises(InfeasiblePlanError, match="one switch for the dgrads' pipelines"):
        exported(told(USERBUFFERS, "qkv_dgrad=pipeline"))


def test_userbuffers_that_overlap_nothing_are_plain() -> None:
    gemms = ("qkv", "proj", "fc1", "fc2")
    nothing = told(USERBUFFERS, *(f"{g}_{way}=none" for g in gemms for way in ("fprop", "dgrad")))
    assert not any("tp_comm" in name for name in options(nothing))


def test_userbuffers_need_transformer_engine() -> None:
    with pytest.raises(InfeasiblePlanError, match="--implementation megatron-te"):
        exported(USERBUFFERS, workload=on("megatron-2022"))


@pytest.mark.parametrize(
    ("plan", "where"),
    [
        (ASYNC_TP, "torchtitan and PyTorch's DTensor"),
        (FUSED, "kernels like Flux's"),
        (NO_COMM, "a bound, which nothing runs"),
    ],
)
def test_strategies_of_other_frameworks_are_refused(plan: Any, where: str) -> None:
    with pytest.raises(InfeasiblePlanError, match=where) as caught:
        exported(plan)
    assert caught.value.reason == "target"


def test_plain_tensor_parallelism_has_no_such_options() -> None:
    found = options(MEGATRON)
    assert "sequence_parallel" not in found
    assert not any("tp_comm" in name for name in found)


def test_modules_that_are_recomputed() -> None:
    work = replace(WORKLOAD, recompute="selective")
    assert "recompute_modules" not in options(workload=work)
    named = replace(work, recompute_modules=("layernorm", "mlp"))
    assert options(workload=named)["recompute_modules"] == ["layernorm", "mlp"]
