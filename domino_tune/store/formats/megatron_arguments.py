"""Arguments of Megatron-LM, 2021 to 2026, and of its forks: those that price a log's run, those
that do not matter, those that are refused, and the defaults of the others, which are reported if
they differ.

Names are as printed (megatron/training/arguments.py). A name may end with ``*``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

from domino_tune.store.formats.megatron_options import DISPATCHERS
from simulator.errors import InputError

LONGEST_VALUE: Final = 40
"""Most characters of a value that a message shows."""
VOCABULARY: Final = "padded_vocab_size"
SAME: Final = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "micro_batch_size": "micro_batch_size",
    "seq_length": "seq_length",
}
"""Argument -> option of simulate that means the same."""
SHAPE: Final = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "ffn_hidden_size": "intermediate_size",
    VOCABULARY: "vocab_size",
}
"""Argument -> field of a model, to be set on the preset of the nearest kind."""
NEEDED: Final = (*SAME, "world_size", "global_batch_size", *SHAPE)
MORE_SHAPE: Final = {
    "kv_channels": "head_dim",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
}
"""The same for arguments that some versions do not print."""
KINDS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "normalization": {"layernorm": {"norm": "layernorm"}, "rmsnorm": {"norm": "rmsnorm"}},
    "position_embedding_type": {
        "learned_absolute": {"position_embedding": "learned"},
        "absolute": {"position_embedding": "learned"},
        "rope": {"position_embedding": "rope"},
        "yarn": {"position_embedding": "rope"},
        "rotary": {"position_embedding": "rope"},
        "none": {"position_embedding": "none"},
    },
    "use_rotary_position_embeddings": {"true": {"position_embedding": "rope"}, "false": {}},
    "untie_embeddings_and_output_weights": {
        "true": {"tie_word_embeddings": "false"}, "false": {"tie_word_embeddings": "true"},
    },
    "qk_layernorm": {"true": {"qk_norm": "true"}, "false": {"qk_norm": "false"}},
    "add_bias_linear": {
        "true": {"attention_bias": "true", "proj_bias": "true", "mlp_bias": "true"},
        "false": {"attention_bias": "false", "mlp_bias": "false"},
    },
    "add_qkv_bias": {"true": {"attention_bias": "true"}, "false": {}},
}  # fmt: skip
"""Argument -> its value, in small letters -> fields of a model; other values are refused. A bias of
qkv alone overrides other arguments on biases.
"""
SWITCHES: Final = {
    "sequence_parallel": "sequence_parallel",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
}
"""Argument that is True or False -> option of simulate; False if it is not printed."""
KERNELS: Final = {
    "apply_rope_fusion": "rope_fusion",
    "bias_dropout_fusion": "bias_dropout_fusion",
    "bias_swiglu_fusion": "swiglu_fusion",
    "check_for_nan_in_loss_and_grad": "check_for_nan_in_grad",
    "cross_entropy_loss_fusion": "cross_entropy_loss_fusion",
    "deterministic_mode": "deterministic_attention",
    "gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "log_num_zeros_in_grad": "log_num_zeros_in_grad",
    "log_params_norm": "log_params_norm",
}
"""Argument that is True or False -> key of the implementation."""
FUSED_LOSS: Final = "cross_entropy_loss_fusion"
"""Argument and key of a loss in one kernel; versions that do not print it have none."""
FUSED_LOSS_BY: Final = "cross_entropy_fusion_impl"
"""Argument of who fuses it: TransformerEngine (te), or Megatron-LM itself (native), by compiling
the passes of its own loss, which keep their copy of the logits in fp32."""
FLASH: Final = (
    "use_flash_attn", "use_flash_attn_v1", "use_flash_attn_v2", "use_flash_attn_triton",
    "use_flash_attn_builder",
)  # fmt: skip
"""Arguments that give layers without TransformerEngine flash attention."""
FSDP: Final = ("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp")
GRAPHS: Final = ("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl", "cuda_graph_scope")
AWARE: Final = "use_precision_aware_optimizer"
MOMENTS: Final = ("exp_avg_dtype", "exp_avg_sq_dtype")
"""Arguments of the optimizer whose moments have a dtype."""
RECOMPUTATION: Final = (
    "recompute_granularity", "recompute_method", "recompute_modules", "checkpoint_activations",
    "activations_checkpoint_method", "activations_checkpoint_granularity",
    "activations_checkpoint_num_layers",
)  # fmt: skip
OF_EXPERTS: Final = (
    "num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
    "moe_layer_freq", "moe_grouped_gemm", "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend", "moe_enable_deepep", "moe_router_force_load_balancing",
    "expert_model_parallel_size", "expert_tensor_parallel_size",
    "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
    "v_head_dim", "mtp_num_layers", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute",
)  # fmt: skip
"""Arguments of experts, latent attention and multi-token prediction."""
PRICED: Final = frozenset(
    {
        *OF_EXPERTS,
        *NEEDED, *MORE_SHAPE, *KINDS, *SWITCHES, *KERNELS, *FLASH, *FSDP, *GRAPHS, *RECOMPUTATION,
        *MOMENTS,
        "accumulate_allreduce_grads_in_fp32", "attention_backend", "bf16", "clip_grad",
        "context_parallel_size", "cp_comm_type", "data_parallel_sharding_strategy", "fp16",
        FUSED_LOSS_BY, "group_query_attention",
        "num_key_value_heads", "num_layers_per_virtual_pipeline_stage", "num_query_groups",
        "num_virtual_stages_per_pipeline_rank", "overlap_p2p_comm", "swiglu", "tp_comm_overlap",
        "transformer_impl", "use_distributed_optimizer", "virtual_pipeline_model_parallel_size",
        "zero_stage",
    }
)  # fmt: skip
"""Arguments that price a run."""

DOES_NOT_MATTER: Final[Mapping[str, tuple[str, ...]]] = {
    "data, tokens and tokenizer": (
        "allow_ambiguous_pad_tokens", "create_attention_mask_in_dataloader", "data_args_path",
        "data_cache_path", "data_efficiency_*", "data_impl", "data_parallel_random_init",
        "data_path", "data_sharding", "dataloader_defer_npy_index_mmap",
        "dataloader_fast_cache_load", "dataloader_type", "enable_msc", "eod_mask_loss",
        "full_validation", "legacy_tokenizer", "local_rank", "make_vocab_size_divisible_by",
        "merge_file", "mid_level_dataset_surplus", "mmap_*", "mock_data",
        "multiple_validation_sets", "null_tokenizer*", "num_dataset_builder_threads",
        "num_workers", "object_storage_cache_path", "per_dataset_sequences_path",
        "per_split_data_args_path", "rank", "reset_iteration", "sample_rate", "seed",
        "short_seq_prob", "split", "test_data_path", "tiktoken_*", "tokenizer_*",
        "train_data_path", "trust_remote_code", "valid_data_path", "vocab_extra_ids", "vocab_file",
        "vocab_size",
    ),
    "checkpoints, which are not written in every iteration": (
        "adlr_autoresume*", "async_*", "auto_detect_ckpt_format", "ckpt_*", "dist_ckpt_*",
        "exit_on_missing_checkpoint", "finetune", "init_model_with_meta_device",
        "iterations_to_skip", "lazy_mpu_init", "load*", "most_recent_k", "no_load_*", "no_save_*",
        "non_persistent_*", "override_*", "perform_initialization", "pretrained_checkpoint",
        "replication*", "save*", "strict_*", "universal_checkpoint", "use_checkpoint_*",
        "use_cpu_initialization", "use_dist_ckpt*", "use_mp_args_*", "use_persistent_ckpt_worker",
        "use_tokenizer_model_from_checkpoint_args", "verify_*",
    ),
    "logs, which are written beside the iteration": (
        "app_tag_*", "barrier_with_L1_time", "codecarbon_*", "config_logger_dir",
        "disable_straggler_on_startup", "enable_one_logger", "kill_switch_path", "log_*",
        "log_interval", "logging_level", "memory_snapshot_path", "mlflow_*", "one_logger*",
        "profile_*", "pytorch_profiler_*", "result_rejected_tracker_filename",
        "run_workload_inspector_server", "straggler_*", "tensorboard_*", "timing_log_option",
        "wandb_*", "workload_inspector_*",
    ),
    "learning rate, losses and what the optimizer multiplies by": (
        "adam_*", "apply_wd_*", "calculate_per_token_loss", "check_for_spiky_loss", "decoupled_*",
        "dynamic_loss_scale", "embedding_init_method_std", "end_weight_decay", "head_lr_mult",
        "hysteresis", "init_method_*", "initial_loss_scale", "layernorm_epsilon", "loss_scale*",
        "lr", "lr_*", "min_loss_scale", "min_lr", "min_scale", "muon_*", "mup_*", "norm_epsilon",
        "sgd_momentum", "start_weight_decay", "use_checkpoint_lr_scheduler", "warmup",
        "weight_decay*",
    ),
    "how long the job is, and what ends it": (
        "abort_*", "calc_ft_timeouts", "check_weight_hash_*", "consumed_*",
        "decrease_batch_size_if_needed", "distributed_timeout_minutes", "enable_ft_package",
        "error_injection_*", "eval_*", "exit_*", "ft_*", "inprocess_*", "iter_per_epoch",
        "manual_gc*", "phase_transition_iterations", "rerun_mode", "skip_train",
        "skipped_train_samples", "test_mode", "train_iters", "train_samples", "train_tokens",
        "yaml_cfg",
    ),
    "angles of rotary embeddings, which cost the same": (
        "mrope_section", "mscale*", "rope_scaling_factor", "rope_type", "rotary_base",
        "rotary_base_per_layer", "rotary_interleaved", "rotary_scaling_factor",
        "rotary_seq_len_interpolation_factor", "use_rope_scaling", "yarn_*",
    ),
    "only of inference": (
        "flash_decode", "inference_*", "max_tokens_to_oom", "mlp_chunks_for_prefill",
    ),
    "how routers choose experts, and what they learn": (
        "expert_bias_*", "moe_apply_probs_on_input", "moe_aux_loss_coeff", "moe_input_jitter_eps",
        "moe_per_layer_logging", "moe_router_bias_update_rate", "moe_router_dtype",
        "moe_router_enable_expert_bias", "moe_router_group_topk",
        "moe_router_load_balancing_type", "moe_router_num_groups", "moe_router_pre_softmax",
        "moe_router_score_function", "moe_router_topk_limited_devices",
        "moe_router_topk_scaling_factor", "moe_z_loss_coeff", "moe_upcycling_*",
        "moe_use_upcycling",
    ),
    "only where tensors go to the host, which is refused": (
        "optimizer_offload_fraction", "pin_cpu_grads", "pin_cpu_params",
        "use_torch_optimizer_for_cpu_offload",
    ),
    "how scales of 8 or 4 bits are found": (
        "fp4_*", "fp8_amax_*", "fp8_interval", "fp8_margin", "fp8_wgrad", "keep_fp8_*",
        "kitchen_*", "mxfp8_*", "nvfp4_*", "te_precision_*",
    ),
    "only of inference with latent attention": (
        "cache_mla_latents",
    ),
    "only of hybrid models, which are refused": (
        "dsa_*", "linear_conv_*", "linear_key_*", "linear_num_*", "linear_value_*", "mamba_*",
    ),
    "how losses of further predicted tokens are weighed": (
        "mtp_loss_*",
    ),
    "only of kinds of models that are no GPT": (
        "bert_*", "biencoder_*", "block_data_path", "classes_fraction", "data_per_class_fraction",
        "decoder_num_layers", "decoder_seq_length", "dino_*", "embedding_path",
        "encoder_num_layers", "encoder_seq_length", "evidence_data_path", "faiss_use_gpu",
        "grpo_*", "ict_*", "img_*", "indexer_*", "langrl_*", "mask_*", "num_channels",
        "num_classes", "output_bert_embeddings", "patch_dim", "query_in_block_prob",
        "relative_attention_*", "report_topk_accuracies", "retriever_*", "retro_attention_gate",
        "retro_cyclic_*", "retro_encoder_*", "retro_num_*", "retro_project_dir", "retro_verify_*",
        "rl_*", "swin_*", "titles_data_path", "use_one_sent_docs", "vision_*",
    ),
    "another word for what other arguments say": (
        "apply_query_key_layer_scaling", "batch_p2p_comm",
        "cuda_graph_warmup_steps", "data_parallel_size", "deallocate_pipeline_outputs",
        "deepscale*", "deepspeed_activation_checkpointing", "deepspeed_config", "deepspeed_mpi",
        "deprecated_use_mcore_models", "distributed_backend", "ds_pipeline_enabled",
        "enable_gloo_process_groups", "grad_reduce_in_bf16",
        "model_parallel_size", "no_pipeline_parallel", "onnx_safe", "openai_gelu", "params_dtype",
        "scaled_*softmax_fusion", "te_rng_tracker", "tp_comm_bootstrap_backend",
        "tp_comm_split_ag", "tp_comm_split_rs", "transformer_pipeline_model_parallel_size",
        "use_gloo_process_groups", "use_legacy_models", "use_mcore_models",
        "use_ring_exchange_p2p",
    ),
}  # fmt: skip
"""Reason -> the arguments that for this reason change neither time nor memory of an iteration."""

REFUSED: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            "rampup_batch_size", "step_batch_size_schedule", "moe_expert_capacity_factor",
            "moe_latent_size",
            "window_size", "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers",
            "decoder_last_pipeline_num_layers", "hybrid_override_pattern", "hybrid_layer_pattern",
            "spec", "heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json",
            "experimental_attention_variant", "linear_attention_type", "linear_attention_freq",
            "hierarchical_context_parallel_sizes", "max_seqlen_per_dp_cp_rank",
            "pipeline_model_parallel_split_rank", "glu_activation", "cpu_offloading_num_layers",
            "offload_modules", "num_unique_layers",
        ), ("None", "", "[]", "0", "[1]"),
    ),
    **dict.fromkeys(
        (
            "squared_relu", "use_tp_pp_dp_mapping",
            "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
            "fp8_e4m3", "fp8_hybrid", "retro_add_retriever", "standalone_embedding_stage",
            "quick_geglu", "attention_output_gate", "is_hybrid_model", "hybrid_context_parallel",
            "dynamic_context_parallel", "variable_seq_lengths", "cpu_offloading",
            "cpu_offloading_activations", "cpu_offloading_weights", "optimizer_cpu_offload",
            "fine_grained_activation_offloading", "offload_optimizer_states", "cpu_optimizer",
            "cpu_torch_adam", "checkpoint_in_cpu", "cpu_checkpointing", "partition_activations",
            "distribute_saved_activations", "distribute_checkpointed_activations",
            "memory_centric_tiled_linear", "curriculum_learning", "curriculum_learning_legacy",
            "random_ltd", "moe_layer_recompute", "moe_use_legacy_grouped_gemm", "moe_extended_tp",
            "moe_pad_expert_input_to_capacity", "fp32_residual_connection", "optimizer_cuda_graph",
            "enable_hyper_connections",
        ), ("False", "None"),
    ),
    **dict.fromkeys(
        (
            "hybrid_attention_ratio", "hybrid_mlp_ratio", "encoder_tensor_model_parallel_size",
            "encoder_pipeline_model_parallel_size",
        ), ("0", "0.0", "None"),
    ),
    **dict.fromkeys(
        (
            "num_distributed_optimizer_instances", "ds_sequence_parallel_size",
            "mamba_context_parallel_size",
        ), ("1", "None"),
    ),
    "optimizer": ("adam", "adamw"),
    "outer_dp_sharding_strategy": ("no_shard",),
    "remote_device": ("none", "None"),
    "torch_fsdp2_reshard_after_forward": ("True",),
    "transformer_impl": ("transformer_engine", "local"),
}  # fmt: skip
"""Argument -> the only values with which a run can be read: other values change its time or memory
in a way that no prediction covers.
"""

OFFLOAD: Final = "offload"
"""Part of the names of all arguments that move tensors to the host, which is refused, too."""

DEFAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "align_grad_reduce": ("True",),
    "async_tensor_model_parallel_allreduce": ("True",),
    "attention_softmax_in_fp32": ("False", "True"),
    "bias_gelu_fusion": ("True", "False"),
    "DDP_impl": ("local",),
    "gradient_reduce_div_fusion": ("True",),
    "masked_softmax_fusion": ("True",),
    "mla_down_proj_fusion": ("False",),
    "moe_permute_fusion": ("True",),
    "moe_router_fusion": ("True",),
    "main_grads_dtype": ("torch.float32", "torch.bfloat16", "fp32", "bf16"),
    "main_params_dtype": ("torch.float32", "fp32"),
    "persist_layer_norm": ("True", "False"),
    "recompute_num_layers": ("1",),
    "checkpoint_num_layers": ("1",),
    "rotary_percent": ("1.0",),
    "scatter_gather_tensors_in_pipeline": ("True",),
    "tp_comm_bulk_dgrad": ("True",),
    "tp_comm_bulk_wgrad": ("True",),
    "tp_comm_overlap_ag": ("True",),
    "tp_comm_overlap_rs": ("True",),
    "softmax_type": ("vanilla",),
    "tile_factor": ("1",),
    "param_sharing_style": ("grouped",),
    "sharp_enabled_group": ("None", "dp"),
}
"""Argument that is neither priced nor irrelevant -> its default, if that is not one of NOTHING, and
other values that cost the same.
"""
NOTHING: Final = ("None", "False", "", "[]", "{}", "0", "0.0", "none")
"""Values of arguments that are not set."""


def not_simulated(source: str, name: str, value: str) -> InputError:
    """Return the error of an argument whose value is not simulated."""
    return InputError(
        f"{source} is of a run with {name} = {value[:LONGEST_VALUE]}, which is not simulated; "
        "leave it out."
    )


def is_usual(name: str, value: str) -> bool:
    """Return whether an argument needs no mention: it is priced, does not matter, or has its
    default."""
    if name in PRICED or name in REFUSED:
        return True
    if name in DEFAULTS:
        return value in (*DEFAULTS[name], "None", "")
    return value in NOTHING or _does_not_matter(name)


@cache
def _does_not_matter(name: str) -> bool:
    named = (one for names in DOES_NOT_MATTER.values() for one in names)
    return any(fnmatchcase(name, one) for one in named)


# Megatron log experts -----------------------------------------------------------------------------
# Experts, latent attention and multi-token prediction in the arguments of a Megatron-LM log.

_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_NONE: Final = ("None", "0", "", "[1]")
EXPERTS: Final = {
    "num_experts": "num_experts",
    "moe_router_topk": "num_experts_per_tok",
    "moe_ffn_hidden_size": "moe_intermediate_size",
    "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size",
}
"""Argument -> field of a model with experts."""
LATENT: Final = {
    "q_lora_rank": "q_lora_rank", "kv_lora_rank": "kv_lora_rank",
    "qk_pos_emb_head_dim": "qk_rope_head_dim", "v_head_dim": "v_head_dim",
}  # fmt: skip
"""The same of latent attention."""


def has_experts(arguments: Mapping[str, str]) -> bool:
    """Return whether the run had experts."""
    return arguments.get("num_experts", "None") not in _NONE


def expert_fields(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the fields of a model that these arguments give, by name. Raise InputError for layers
    that are not simulated."""
    found: dict[str, str] = {}
    if has_experts(arguments):
        if not _WHOLE.fullmatch(arguments["num_experts"]):
            raise not_simulated(source, "num_experts", arguments["num_experts"])
        if arguments.get("moe_grouped_gemm", "True") != "True":
            raise not_simulated(source, "moe_grouped_gemm", arguments["moe_grouped_gemm"])
        usual = {"moe_ffn_hidden_size": arguments["ffn_hidden_size"], "moe_router_topk": "2"}
        found |= _given({**usual, **_told(arguments, EXPERTS)}, EXPERTS)
        found["first_k_dense_replace"] = str(_first_dense(arguments, source))
    if arguments.get("multi_latent_attention") == "True":
        found |= _given(_told(arguments, LATENT), LATENT)
        parts = [arguments.get(name, "") for name in ("qk_head_dim", "qk_pos_emb_head_dim")]
        for name, part in zip(("qk_head_dim", "qk_pos_emb_head_dim"), parts, strict=True):
            if not _WHOLE.fullmatch(part):
                raise not_simulated(source, name, part or "None")
        found |= {
            "head_dim": str(sum(map(int, parts))), "qk_norm": "false",
            "num_key_value_heads": arguments["num_attention_heads"],
        }  # fmt: skip
    further = arguments.get("mtp_num_layers", "None")
    return found if further in _NONE else {**found, "num_nextn_predict_layers": further}


def expert_options(arguments: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the options of simulate on ranks of experts. Raise InputError for a dispatcher that is
    not simulated."""
    if not has_experts(arguments):
        return {}
    kind = arguments.get("moe_token_dispatcher_type", "allgather")
    backend = arguments.get("moe_flex_dispatcher_backend", "deepep") if kind == "flex" else ""
    if (kind, backend) not in DISPATCHERS:
        raise not_simulated(source, "moe_token_dispatcher_type", f"{kind} {backend}".strip())
    found = {"moe_dispatcher": DISPATCHERS[kind, backend]}
    if backend and (sms := arguments.get(f"moe_{backend}_num_sms")):
        found["moe_dispatcher_sms"] = sms
    for name, option in (
        ("expert_model_parallel_size", "ep"), ("expert_tensor_parallel_size", "etp")
    ):  # fmt: skip
        if arguments.get(name, "None") != "None":
            found[option] = arguments[name]
    return found


def expert_note(arguments: Mapping[str, str], source: str) -> str:
    """Return a note on tokens that may not have been balanced, or an empty text."""
    forced = arguments.get("moe_router_force_load_balancing") == "True"
    if forced or not has_experts(arguments):
        return ""
    return (
        f"{source}: tokens are taken to be balanced among experts, which this run did not force; "
        "--moe-imbalance says otherwise."
    )


def _told(arguments: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {name: arguments[name] for name in names if arguments.get(name, "None") != "None"}


def _given(values: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, str]:
    return {fields[name]: value for name, value in values.items()}


def _first_dense(arguments: Mapping[str, str], source: str) -> int:
    """Return how many first layers are dense, of ``1`` or of a list like ``[0, 0, 1, 1]``."""
    told = arguments.get("moe_layer_freq", "1")
    if told == "1":
        return 0
    listed = re.fullmatch(r"\[((?:0, ?)*)((?:1, ?)*1)\]", told)
    if listed is None:
        raise not_simulated(source, "moe_layer_freq", told)
    return listed[1].count("0")
