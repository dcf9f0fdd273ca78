"""Build megatron-core's own configs from Megatron-LM's options, and report what they refuse.

Options become fields as in ``core_transformer_config_from_args`` in megatron/training/arguments.py
at 000c4ac, and as for the two other configs in megatron/training/training.py.
"""

from __future__ import annotations

import inspect
import json
import sys
import typing
import warnings
from typing import Any, Final

import torch
import torch.nn.functional as functional
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import TransformerConfig
from pydantic import ConfigDict, TypeAdapter

Options = dict[str, Any]
OFF: Final = {
    "disable_bias_linear": "add_bias_linear",
    "disable_tp_comm_bulk_dgrad": "tp_comm_bulk_dgrad",
    "disable_tp_comm_bulk_wgrad": "tp_comm_bulk_wgrad",
    "disable_tp_comm_overlap_ag": "tp_comm_overlap_ag",
    "disable_tp_comm_overlap_rs": "tp_comm_overlap_rs",
    "no_bias_dropout_fusion": "bias_dropout_fusion",
    "no_bias_swiglu_fusion": "bias_activation_fusion",
    "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "no_overlap_p2p_communication": "overlap_p2p_comm",
    "no_rope_fusion": "apply_rope_fusion",
}
"""Option that turns something off -> the field."""
MODEL: Final = {
    "max_position_embeddings": "max_sequence_length",
    "position_embedding_type": "position_embedding_type",
    "rope_scaling_factor": "rope_scaling_factor",
    "rotary_base": "rotary_base",
    "untie_embeddings_and_output_weights": "share_embeddings_and_output_weights",
    "use_rope_scaling": "rope_scaling",
}
"""Option -> parameter of GPTModel."""
REPLICAS: Final = {
    "accumulate_allreduce_grads_in_fp32": "grad_reduce_in_fp32",
    "grad_reduce_in_bf16": "grad_reduce_in_fp32",
    "no_check_for_nan_in_loss_and_grad": "check_for_nan_in_grad",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
    "use_distributed_optimizer": "use_distributed_optimizer",
}
"""Option -> field of DistributedDataParallelConfig."""
OPTIMIZER: Final = {
    "clip_grad": "clip_grad", "log_num_zeros_in_grad": "log_num_zeros_in_grad",
    "overlap_param_gather": "overlap_param_gather",
    "use_distributed_optimizer": "use_distributed_optimizer", "bf16": "bf16", "fp16": "fp16",
}  # fmt: skip
MOMENTS: Final = {
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "main_grads_dtype",
    "use_precision_aware_optimizer",
}
"""Fields of OptimizerConfig of which only the names are checked: TransformerEngine has to be
there."""
FUSED_ROWS: Final = "moe_permute_fusion"
"""The same of TransformerConfig."""
RENAMED: Final = {"te_rng_tracker": "use_te_rng_tracker", "fp8_format": "fp8"}
"""Option -> field of TransformerConfig."""
LOOP: Final = {
    "global_batch_size", "group_query_attention", "log_params_norm", "micro_batch_size",
    "num_layers_per_virtual_pipeline_stage", "seq_length", "swiglu", "tp_comm_overlap_cfg",
    "transformer_impl", "use_torch_fsdp2",
}  # fmt: skip
"""Options of the training loop alone, and options that become fields below."""


def main() -> None:
    cases: dict[str, Options] = json.load(sys.stdin)
    print(json.dumps({name: refusal(options) for name, options in cases.items()}))


def refusal(options: Options) -> str:
    """Return why megatron-core refuses the options, or an empty text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _model(options)
            _made(DistributedDataParallelConfig, _fields(options, REPLICAS))
            _made(OptimizerConfig, _optimizer(options))
            _made(TransformerConfig, _transformer(options))
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _optimizer(options: Options) -> Options:
    unknown = (MOMENTS & options.keys()) - OptimizerConfig.__dataclass_fields__.keys()
    if unknown:
        raise LookupError(f"no field {sorted(unknown)}")
    return _fields(options, OPTIMIZER)


def _transformer(options: Options) -> Options:
    known = {*OPTIMIZER, *MOMENTS, *MODEL, *REPLICAS, *LOOP} - {"bf16", "fp16"}
    fields: Options = {OFF.get(name, name): value for name, value in options.items()}
    fields |= {OFF[name]: False for name in OFF.keys() & options.keys()}
    fields = {name: value for name, value in fields.items() if name not in known}
    fields["layernorm_epsilon"] = fields.pop("norm_epsilon")
    if fields.pop(FUSED_ROWS, False) and FUSED_ROWS not in TransformerConfig.__dataclass_fields__:
        raise LookupError(f"no field {FUSED_ROWS}")
    for option, field in RENAMED.items():
        if option in fields:
            fields[field] = fields.pop(option)
    if "num_experts" in fields:
        fields["num_moe_experts"] = fields.pop("num_experts")
    if "attention_backend" in fields:
        fields["attention_backend"] = AttnBackend[fields["attention_backend"]]
    dtype = torch.bfloat16 if "bf16" in options else torch.half if "fp16" in options else None
    fields |= {"params_dtype": dtype or torch.float, "pipeline_dtype": dtype or torch.float}
    if "swiglu" in options:
        fields |= {"activation_func": functional.silu, "gated_linear_unit": True}
    if "group_query_attention" not in options:
        fields["num_query_groups"] = None
    return fields | _stages(options)


def _stages(options: Options) -> Options:
    """Return the virtual stages, and whether messages overlap, as ``validate_args`` has it."""
    stages, per_stage = options["pipeline_model_parallel_size"], 0
    fields: Options = {"deallocate_pipeline_outputs": True}
    if "num_layers_per_virtual_pipeline_stage" in options:
        per_stage = options["num_layers_per_virtual_pipeline_stage"]
        layers, rest = divmod(options["num_layers"], stages)
        assert rest + layers % per_stage == 0, "layers do not divide by stages"
        fields["virtual_pipeline_model_parallel_size"] = layers // per_stage
    overlap = bool(per_stage) and "no_overlap_p2p_communication" not in options
    assert not per_stage or stages > (1 if overlap else 2), "two stages have to overlap messages"
    return {**fields, "overlap_p2p_comm": overlap, "batch_p2p_comm": not overlap}


def _fields(options: Options, names: dict[str, str]) -> Options:
    """Return the fields that options of these names set."""
    negative = {"grad_reduce_in_bf16", "no_check_for_nan_in_loss_and_grad"}
    return {
        names[name]: False if name in negative else value
        for name, value in options.items()
        if name in names
    }


def _model(options: Options) -> None:
    """Raise TypeError for an option that is not a parameter of the model, or has another type."""
    parameters = inspect.signature(GPTModel.__init__).parameters
    hints = typing.get_type_hints(GPTModel.__init__)
    for option, name in MODEL.items():
        if option in options:
            parameters[name]
            value = not options[option] if option.startswith("untie") else options[option]
            _check(hints[name], value)


def _made(config: type, fields: Options) -> None:
    """Build the config; its fields must have the types that it declares."""
    config(**fields)
    hints = typing.get_type_hints(config)
    for name, value in fields.items():
        _check(hints[name], value)


def _check(hint: Any, value: Any) -> None:
    adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True, strict=True))
    adapter.validate_python(value)


if __name__ == "__main__":
    main()
