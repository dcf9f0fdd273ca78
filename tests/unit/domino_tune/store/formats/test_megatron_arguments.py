"""Arguments of Megatron-LM's logs: priced, irrelevant, refused by name, or reported."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from domino_tune.store.formats.megatron_arguments import (
    DEFAULTS,
    DOES_NOT_MATTER,
    KERNELS,
    PRICED,
    REFUSED,
    is_usual,
)
from domino_tune.store.formats.megatron_log import read_megatron_log
from simulator.errors import InputError
from simulator.implementation import IMPLEMENTATIONS, KEYS
from tests.unit.domino_tune.store.formats.test_megatron_log import (
    FOUND_MS,
    GPT,
    LLAMA,
    case_of,
    log,
    resolved,
)

OLD: Final[dict[str, Any]] = {
    name: GPT[name]
    for name in (
        "attention_dropout", "bias_dropout_fusion", "data_parallel_size", "ffn_hidden_size",
        "global_batch_size", "hidden_dropout", "hidden_size", "kv_channels",
        "max_position_embeddings", "micro_batch_size", "num_attention_heads", "num_layers",
        "pipeline_model_parallel_size", "seq_length", "tensor_model_parallel_size", "world_size",
    )
} | {
    "DDP_impl": "local", "adam_beta1": 0.9, "bf16": False, "bias_gelu_fusion": True,
    "checkpoint_activations": True, "checkpoint_num_layers": 1, "clip_grad": 1.0,
    "distribute_checkpointed_activations": False, "fp16": True, "masked_softmax_fusion": True,
    "optimizer": "adam", "scatter_gather_tensors_in_pipeline": True,
}  # fmt: skip
"""Arguments that Megatron-LM of 2021 printed: neither kinds of models nor of kernels."""


def note(told: dict[str, Any]) -> str:
    return read_megatron_log(log({**GPT, **told}), "run.log").note


def refusal(told: dict[str, Any]) -> str:
    with pytest.raises(InputError) as refused:
        read_megatron_log(log({**GPT, **told}), "run.log")
    return str(refused.value)


def test_lists_do_not_overlap_and_name_what_exists() -> None:
    names = [name for group in DOES_NOT_MATTER.values() for name in group]
    assert len(names) == len({*names})
    assert not {*names} & (PRICED | {*REFUSED} | {*DEFAULTS})
    assert not PRICED & {*DEFAULTS}
    assert {*KERNELS.values()} <= {*KEYS}


def test_a_usual_log_has_no_note() -> None:
    assert note({}) == ""
    assert note({"data_path": ["a", "b"], "lr": 1e-4, "moe_router_topk": 2, "spec": None}) == ""


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"ddp_bucket_size": 40000000}, "ddp_bucket_size = 40000000"),
        ({"async_tensor_model_parallel_allreduce": False}, "_allreduce = False"),
        ({"DDP_impl": "torch"}, "DDP_impl = torch"),
        ({"rotary_percent": 0.25}, "rotary_percent = 0.25"),
        ({"timing_log_level": 2, "profile": True}, "profile = True, timing_log_level = 2"),
        ({"a_word_of_tomorrow": "fast"}, "a_word_of_tomorrow = fast"),
        ({"use_precision_aware_optimizer": True}, "use_precision_aware_optimizer = True"),
        ({"main_params_dtype": "torch.float16"}, "main_params_dtype = torch.float16"),
        ({"recompute_method": "uniform", "recompute_granularity": "full",
          "recompute_num_layers": 4}, "recompute_num_layers = 4"),
    ],
)  # fmt: skip
def test_any_other_argument_is_told_with_its_value(told: dict[str, Any], said: str) -> None:
    found = note(told)
    assert found.startswith("run.log: predicted without ")
    assert said in found
    assert found.endswith(": not looked at, and not Megatron-LM's default.")


@pytest.mark.parametrize("name", ["deepspeed", "apply_layernorm_1p", "qk_l2_norm", "nccl_ub"])
@pytest.mark.parametrize("value", ["None", "False", "", "[]", "0"])
def test_what_is_not_given_is_not_told(name: str, value: str) -> None:
    assert is_usual(name, value)
    assert not is_usual(name, "True")


@pytest.mark.parametrize(
    "told",
    [
        {"checkpoint_activations": True, "checkpoint_num_layers": 1},
        {"activations_checkpoint_method": "uniform", "activations_checkpoint_num_layers": 1},
        {"activations_checkpoint_granularity": "full"},
        {"recompute_granularity": "full", "recompute_modules": None},
    ],
    ids=str,
)
def test_full_recomputation_has_several_names(told: dict[str, Any]) -> None:
    assert case_of(log({**GPT, "recompute_granularity": None, **told})).workload.recompute == "full"


def test_blocks_of_older_versions() -> None:
    told = {"activations_checkpoint_method": "block", "activations_checkpoint_num_layers": 3}
    work = case_of(log({**GPT, **told})).workload
    assert (work.recompute, work.recompute_layers) == ("full", 3)


@pytest.mark.parametrize("modules", ["None", "['core_attn']", "[]"])
def test_the_attention_core_alone_is_selective(modules: str) -> None:
    told = {"recompute_granularity": "selective", "recompute_modules": modules}
    assert case_of(log({**GPT, **told})).workload.recompute == "selective"


def test_other_modules_are_those_of_the_log() -> None:
    told = {"recompute_granularity": "selective", "recompute_modules": "['layernorm', 'mlp']"}
    work = case_of(log({**GPT, **told})).workload
    assert (work.recompute, work.recompute_modules) == ("selective", ("layernorm", "mlp"))


def test_what_is_priced_is_not_told() -> None:
    block = {
        "recompute_method": "block",
        "recompute_granularity": "full",
        "recompute_num_layers": 4,
    }
    parts = {
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": "[<CudaGraphScope.moe_router: 5>, <CudaGraphScope.attn: 2>]",
    }
    assert case_of(log({**LLAMA, **parts})).workload.cuda_graph_scope == ("attn", "moe_router")
    assert case_of(log({**LLAMA, **parts, "cuda_graph_scope": "attn"})).workload.cuda_graph_scope
    fsdp = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
    assert note({**block, **fsdp}) == ""


def test_modules_count_only_where_recomputation_is_selective() -> None:
    assert case_of(log({**GPT, "recompute_modules": "['mlp']"})).workload.recompute == "none"


AWARE: Final = {
    "use_precision_aware_optimizer": True, "exp_avg_dtype": "torch.bfloat16",
    "exp_avg_sq_dtype": "torch.bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("told", "dtype"),
    [
        ({}, "bf16"),
        ({"exp_avg_dtype": "torch.uint8", "exp_avg_sq_dtype": "torch.uint8"}, "fp8"),
        ({"use_precision_aware_optimizer": False}, "fp32"),
    ],
)
def test_moments_of_the_precision_aware_optimizer(told: dict[str, Any], dtype: str) -> None:
    found = {**GPT, "use_distributed_optimizer": True, **AWARE, **told}
    assert case_of(log(found)).workload.moments_dtype == dtype
    assert note({**AWARE, **told}) == ""


SELECTIVE: Final = {"recompute_granularity": "selective"}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({**SELECTIVE, "recompute_modules": "['core_attn', 'norm']"}, "recompute_modules = ['co"),
        ({"recompute_granularity": "partial"}, "recompute_granularity = partial"),
        ({**AWARE, "exp_avg_sq_dtype": "torch.float32"}, "exp_avg_sq_dtype = torch.float32"),
        ({**AWARE, "exp_avg_dtype": "torch.float16"}, "exp_avg_dtype = torch.float16"),
        ({"transformer_impl": "inference_optimized"}, "transformer_impl = inference_optimized"),
        ({"attention_backend": "AttnBackend.magic"}, "attention_backend = magic"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern = M-M*"),
        ({"hybrid_attention_ratio": 0.08}, "hybrid_attention_ratio = 0.08"),
        ({"is_hybrid_model": True}, "is_hybrid_model = True"),
        ({"spec": "['megatron.core.models.mamba', 'x']"}, "spec = ['megatron.core.models.mamba'"),
        ({"heterogeneous_layers_config_path": "c.json"}, "heterogeneous_layers_config_path = "),
        ({"cpu_offloading": True}, "cpu_offloading = True"),
        ({"cpu_offloading_num_layers": 8}, "cpu_offloading_num_layers = 8"),
        ({"optimizer_cpu_offload": True}, "optimizer_cpu_offload = True"),
        ({"fine_grained_activation_offloading": True}, "fine_grained_activation_offloading = "),
        ({"offload_of_tomorrow": True}, "offload_of_tomorrow = True"),
        ({"checkpoint_in_cpu": True}, "checkpoint_in_cpu = True"),
        ({"distribute_saved_activations": True}, "distribute_saved_activations = True"),
        ({"rampup_batch_size": "['16', '16', '1000']"}, "rampup_batch_size = ['16', "),
        ({"fp8_hybrid": True}, "fp8_hybrid = True"),
        ({"fp8": "hybrid", "fp8_wgrad": False}, "fp8_wgrad = False"),
        ({"te_precision_config_file": "c.yaml"}, "te_precision_config_file = c.yaml"),
        ({"kitchen_recipe_number": 3}, "kitchen_recipe_number = 3"),
        ({"fp4_param_gather": True}, "fp4_param_gather = True"),
        ({"num_experts": "[64]"}, "num_experts = [64]"),
        ({"num_experts": "8"}, "num_experts = 8 (top 1)"),
        ({"optimizer": "dist_muon"}, "optimizer = dist_muon"),
        ({"num_distributed_optimizer_instances": 2}, "num_distributed_optimizer_instances = 2"),
        ({"use_torch_fsdp2": True, "torch_fsdp2_reshard_after_forward": False}, "_forward = False"),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"},
         "data_parallel_sharding_strategy = optim_grads,"),
        ({"use_custom_fsdp": True, "data_parallel_sharding_strategy": "no_shard"}, "= no_shard"),
        ({"deepspeed": True, "zero_stage": 3}, "zero_stage = 3"),
        ({"deepspeed": True, "zero_stage": 2.0}, "zero_stage = 2.0"),
        ({"ds_sequence_parallel_size": 4}, "ds_sequence_parallel_size = 4"),
        ({"enable_cuda_graph": True}, "enable_cuda_graph = True"),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "['attn', 'mlp']"},
         "cuda_graph_impl = transformer_engine"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type = alibi"),
        ({"normalization": "DyT"}, "normalization = DyT"),
        ({"experimental_attention_variant": "gated_delta_net"}, "experimental_attention_variant"),
    ],
    ids=str,
)  # fmt: skip
def test_what_no_prediction_has_is_refused_by_name(told: dict[str, Any], said: str) -> None:
    found = refusal(told)
    assert said in found
    assert "which is not simulated" in found


@pytest.mark.parametrize(
    ("told", "name", "flash"),
    [
        ({"transformer_impl": "transformer_engine", "use_flash_attn": False}, "megatron-te", True),
        ({"attention_backend": "AttnBackend.auto"}, "megatron-te", True),
        ({"attention_backend": "AttnBackend.fused"}, "megatron-te", True),
        ({"attention_backend": "AttnBackend.unfused"}, "megatron-te", False),
        ({"attention_backend": "local"}, "megatron-te", False),
        ({"transformer_impl": "local", "use_flash_attn": False}, "megatron-2022", False),
        ({"transformer_impl": "local"}, "megatron-2022", False),
        ({"transformer_impl": "local", "use_flash_attn": True}, "megatron-2022", True),
        ({"transformer_impl": "local", "use_flash_attn_v2": True}, "megatron-2022", True),
    ],
    ids=str,
)
def test_kernels_of_layers_and_attention(told: dict[str, Any], name: str, flash: bool) -> None:
    how = case_of(log({**GPT, **told})).workload.implementation
    assert (how.name, how.flash_attention) == (name, flash)


def test_layers_of_megatrons_own_are_told() -> None:
    assert note({"transformer_impl": "local"}) == (
        "run.log: transformer_impl is local, read as --implementation megatron-2022."
    )


def test_a_log_of_2021_is_read_as_it_ran() -> None:
    case, strategy = resolved(log(OLD))
    work, model = case.workload, case.model
    assert strategy == "megatron"
    assert (work.recompute, work.recompute_layers, work.dtype) == ("full", 0, "fp16")
    assert (work.data_parallel, work.overlap_grad_reduce) == ("replicas", False)
    assert work.implementation == IMPLEMENTATIONS["megatron-2022"]
    assert (model.norm, model.position_embedding, model.hidden_act) == (
        "layernorm", "learned", "gelu",
    )  # fmt: skip
    assert read_megatron_log(log(OLD), "run.log").note == (
        "run.log: checkpoint_activations = True is read as full recomputation. "
        "run.log: transformer_impl is not printed, read as --implementation megatron-2022."
    )


@pytest.mark.parametrize(
    ("told", "position"),
    [
        ({"position_embedding_type": "PositionEmbeddingType.rotary"}, "rope"),
        ({"position_embedding_type": "PositionEmbeddingType.absolute"}, "learned"),
        ({"use_rotary_position_embeddings": True}, "rope"),
        ({"position_embedding_type": "yarn"}, "rope"),
    ],
    ids=str,
)
def test_positions_have_several_names(told: dict[str, Any], position: str) -> None:
    assert case_of(log({**GPT, **told})).model.position_embedding == position


def test_what_forks_print_otherwise() -> None:
    """Megatron-DeepSpeed: norms in small letters, heads of keys, ZeRO."""
    told = {"normalization": "rmsnorm", "num_key_value_heads": 4, "group_query_attention": None,
            "deepspeed": True, "zero_stage": 1.0, "use_distributed_optimizer": None,
            "num_experts": "[1]"}  # fmt: skip
    case = case_of(log({**GPT, **told}))
    assert (case.model.norm, case.model.num_key_value_heads) == ("rmsnorm", 4)
    assert case.workload.data_parallel == "distributed-optimizer"
    assert "deepspeed = True" in note(told)


def test_quantized_layers_were_looked_at() -> None:
    told = {"fp8": "hybrid", "fp8_format": "hybrid", "fp8_recipe": "tensorwise",
            "fp8_param_gather": True, "first_last_layers_bf16": True,
            "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1}  # fmt: skip
    assert note(told) == ""
    assert case_of(log({**LLAMA, **told})).workload.fp8_recipe == "tensorwise"


def test_other_switches_that_are_priced() -> None:
    told = {"clip_grad": 0.0, "apply_rope_fusion": False, "cuda_graph_impl": "local",
            "cuda_graph_scope": "[<CudaGraphScope.full_iteration: 9>]",
            "check_for_nan_in_loss_and_grad": False}  # fmt: skip
    case = case_of(log({**LLAMA, **told}))
    how = case.workload.implementation
    assert (how.clip_grad, how.rope_fusion, how.check_for_nan_in_grad) == (False, False, False)
    assert case.cluster.cuda_graph
    fsdp = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
    assert case_of(log({**LLAMA, **fsdp})).workload.data_parallel == "fsdp"


def test_an_argument_whose_name_leaves_no_room_for_dots_is_read() -> None:
    text = log({**GPT, "deepspeed_activation_checkpointing_of_all": True})
    long = "inference_dynamic_batching_buffer_guaranteed_fraction  0.2"
    more = text.replace(
        "  bf16 .", f"  {long}\n  recompute_of_everything_in_every_layer_x  9\n  bf16 ."
    )
    assert "recompute_of_everything_in_every_layer_x = 9" in read_megatron_log(more, "run.log").note


@pytest.mark.parametrize(("decimals", "rounding_ms"), [(1, 50.0), (2, 5.0)])
def test_seconds_are_read_with_their_rounding(decimals: int, rounding_ms: float) -> None:
    def in_seconds(one: re.Match[str]) -> str:
        return f"elapsed time per iteration (s): {float(one[1]) / 1e3:.{decimals}f}"

    text = re.sub(r"elapsed time per iteration \(ms\): ([0-9.]+)", in_seconds, log(GPT))
    row = read_megatron_log(text, "run.log")
    assert row.measured_ms == pytest.approx(round(FOUND_MS / 1e3, decimals) * 1e3)
    assert row.rounding_ms == pytest.approx(rounding_ms)
    assert read_megatron_log(log(GPT), "run.log").rounding_ms == pytest.approx(0.05)


STAMP: Final = "2025-03-01T10:00:00.123456789Z "
MARKS: Final = (
    STAMP, "[1,0]<stdout>:", "[0] ", "0: ", "[default0]:", f"{STAMP}[default0]:",
    "(RayTrainWorker pid=123, ip=10.0.0.1) ", "trainer-1  | ", "[pod/trainer-0/main] ",
    f"\x1b[36mtrainer-1  |\x1b[0m {STAMP}", "Thu Mar  6 10:00:00 2025[1,0]<stdout>:",
)  # fmt: skip


@pytest.mark.parametrize("mark", MARKS, ids=repr)
@pytest.mark.parametrize("every", [1, 2])
def test_marks_of_launchers_do_not_matter(mark: str, every: int) -> None:
    """Some lines may have none."""
    plain = log(LLAMA).splitlines()
    marked = [line if number % every else mark + line for number, line in enumerate(plain)]
    assert read_megatron_log("\n".join(marked), "r") == read_megatron_log("\n".join(plain), "r")


def marked(text: str, mark: str) -> list[str]:
    return [mark + line for line in text.splitlines()]


def test_the_first_rank_prints_arguments_and_the_last_one_times() -> None:
    head, times = log(GPT).split("[after megatron", 1)
    lines = marked(head, "[0] ") + marked(f"[after megatron{times}", "[7] ")
    assert read_megatron_log("\n".join(lines), "r") == read_megatron_log(log(GPT), "r")


def test_times_of_several_ranks_count_once() -> None:
    """Eight ranks print each iteration: the first two of one rank are left out, not the first two
    lines.
    """
    head, times = log(GPT).split("[after megatron", 1)
    lines = marked(head, "0: ")
    for line in f"[after megatron{times}".splitlines():
        lines += [f"{rank}: {line}" for rank in range(8)]
    assert read_megatron_log("\n".join(lines), "r") == read_megatron_log(log(GPT), "r")


def test_arguments_of_another_rank_in_between_are_not_mixed_in() -> None:
    other = marked(log({**GPT, "recompute_granularity": "full"}, times=()), "b-1  | ")
    mine = marked(log(GPT), "a-1  | ")
    lines = [*other[:3], *mine[:5], *other[3:], *mine[5:]]
    assert read_megatron_log("\n".join(lines), "r").options["recompute"] == "none"


def test_a_mark_that_is_not_known_is_named() -> None:
    with pytest.raises(InputError, match="Lines of r begin with '<<job 7>>', a mark of no launch"):
        read_megatron_log("\n".join(marked(log(GPT), "<<job 7>> ")), "r")
