from __future__ import annotations

import pytest

from simulator.presets import MODELS
from simulator.specs import ClusterSpec, Workload, check_shardable

BILLIONS = {
    "gpt3-1.3b": 1.3, "gpt3-2.7b": 2.7, "gpt3-6.7b": 6.7, "gpt3-13b": 12.9, "gpt3-30b": 30.0,
    "gpt3-175b": 174.6, "llama2-7b": 6.7, "llama2-13b": 13.0, "llama2-70b": 69.0,
    "llama3-8b": 8.0, "llama3-70b": 70.6, "llama3-405b": 405.9,
}  # fmt: skip


def test_parameter_counts_are_the_published_ones() -> None:
    counts = {name: round(model.parameters / 1e9, 1) for name, model in MODELS.items()}
    assert counts == pytest.approx(BILLIONS, abs=0.11)


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_shards_over_a_node(name: str) -> None:
    model = MODELS[name]
    assert model.name == name
    assert model.attention_size == model.hidden_size
    check_shardable(model, Workload(seq_length=1024, micro_batch_size=1), ClusterSpec(tp=8))
