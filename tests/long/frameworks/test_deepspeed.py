"""Exports to DeepSpeed's Domino, built as its own layers, which run a forward pass."""

from __future__ import annotations

from typing import Final

import pytest

from tests.long.frameworks.cases import CASES, NARROW, exports
from tests.long.frameworks.environment import answers, environment
from tests.support.megatron_options import parsed

DEEPSPEED: Final = (
    "deepspeed==0.19.8", "einops==0.8.2", "hjson==3.1.0", "megatron-core==0.3.0",
    "py-cpuinfo==9.0.0",
)  # fmt: skip
"""The newest on 24 November 2026, and what its configs import; megatron-core of its example."""
OPTIONS: Final = {
    "add_bias_linear", "attention_dropout", "bf16", "disable_bias_linear", "ffn_hidden_size",
    "fp16", "global_batch_size", "hidden_dropout", "hidden_size", "kv_channels",
    "max_position_embeddings", "micro_batch_size", "no_gradient_accumulation_fusion", "num_layers",
    "num_attention_heads", "pipeline_model_parallel_size", "position_embedding_type", "seq_length",
    "tensor_model_parallel_size", "untie_embeddings_and_output_weights",
    "use_distributed_optimizer",
}  # fmt: skip
"""Options of the Megatron-LM that the example has as a submodule: those that its scripts give
(pretrain_gpt3_13b.sh at 9478a6f), and those that its modules ask ``args`` and ``config`` for
(domino/language_model.py and training.py at 379f572)."""


def test_every_export_builds_domino_layers_that_run(pytestconfig: pytest.Config) -> None:
    made = exports("deepspeed")
    assert made.keys() == {"two slices", "two slices, intra"}
    cases = {
        name: {"options": parsed(list(one.arguments)), "settings": one.settings}
        for name, one in made.items()
    }
    assert all(one["options"].keys() <= OPTIONS for one in cases.values())
    said = answers(environment(pytestconfig.cache, *DEEPSPEED), "deepspeed_job", cases)
    for name, order in (("two slices", "inter"), ("two slices, intra", "intra")):
        found = said[name]
        assert found["forward"] == f"{order}_layer_overlap_forward"
        assert found["shape"] == [8, 2, NARROW.hidden_size]
        # Two layers and the last norm: qkv, proj, fc1 and fc2 with biases, two norms a layer.
        wide, ffn = NARROW.hidden_size, NARROW.intermediate_size
        layer = 4 * wide * (wide + 1) + 2 * wide * ffn + ffn + wide + 4 * wide
        assert found["parameters"] == 2 * layer + 2 * wide
        assert found["micro_batches"] == CASES[name]["workload"].grad_accumulation
    assert (said["two slices"]["bf16"], said["two slices, intra"]["fp16"]) == (True, True)
