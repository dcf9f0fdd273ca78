"""Build DeepSpeed's Domino layers from exported options and settings, and its config of the batch.

The options become the config that the example gives them: TransformerConfig of megatron-core 0.3.0,
which Megatron-LM had then.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import fields
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.domino.transformer import DominoTransformer, ModelType

from tests.long.frameworks.one_rank import one_rank

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.transformer.transformer_config import TransformerConfig

Options = dict[str, Any]


class OneRank:
    """Megatron-LM's parallel state, where no rank shares tensors."""

    def get_tensor_model_parallel_world_size(self) -> int:
        return 1

    def get_tensor_model_parallel_group(self) -> Any:
        return dist.group.WORLD


def main() -> None:
    cases: dict[str, Any] = json.load(sys.stdin)
    with one_rank():
        found = {name: answer(one["options"], one["settings"]) for name, one in cases.items()}
    print(json.dumps(found))


def answer(options: Options, settings: Options) -> Options:
    """Return the forward pass that the layers take, their weights, and the batch."""
    config = transformer_config(options)
    for name, value in settings.items():
        setattr(config, name, value)
    layers = DominoTransformer(config, OneRank(), None, ModelType.encoder_or_decoder)
    rows = torch.randn(8, 2, config.hidden_size, dtype=torch.float).to(config.params_dtype)
    batch = DeepSpeedConfig(batch_config(options))
    return {
        "forward": layers._forward_impl.__name__,
        "shape": list(layers(rows, None).shape),
        "parameters": sum(one.numel() for one in layers.parameters()),
        "micro_batches": batch.gradient_accumulation_steps,
        "bf16": batch.bfloat16_config.enabled,
        "fp16": batch.float16_config.enabled,
    }


def transformer_config(options: Options) -> Any:
    """Return the config of two of the layers: all are alike."""
    dtype = torch.bfloat16 if "bf16" in options else torch.half if "fp16" in options else None
    named = {one.name for one in fields(TransformerConfig)}
    told = {name: value for name, value in options.items() if name in named}
    told |= {"num_layers": 2, "params_dtype": dtype or torch.float}
    told |= {
        "tensor_model_parallel_size": 1,
        "add_bias_linear": "disable_bias_linear" not in options,
    }
    return TransformerConfig(**told)


def batch_config(options: Options) -> Options:
    """Return the JSON that DeepSpeed's launcher would read for this batch and type."""
    return {
        "train_batch_size": options["global_batch_size"],
        "train_micro_batch_size_per_gpu": options["micro_batch_size"],
        "bf16": {"enabled": "bf16" in options},
        "fp16": {"enabled": "fp16" in options},
    }


if __name__ == "__main__":
    main()
