"""Layers of the stages of a pipeline."""

from __future__ import annotations

import pytest

from simulator.presets import MODELS
from simulator.sharding import balanced_layers, spread_layers


def test_stages_are_balanced_by_the_head() -> None:
    """Of Llama 3 8B the head multiplies as much as 2.4 layers; of 405B as much as 0.7."""
    assert balanced_layers(MODELS["llama3-8b"], 2) == (17, 15)
    assert balanced_layers(MODELS["llama3-8b"], 4) == (9, 9, 8, 6)
    assert balanced_layers(MODELS["llama3-70b"], 2) == ()  # 41 instead of 41.2 layers
    assert balanced_layers(MODELS["llama3-405b"], 8) == ()  # the last stage has one less anyhow


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_stages_have_all_layers_between_them(name: str, stages: int) -> None:
    model = MODELS[name]
    layers = model.num_hidden_layers
    usual, balanced = spread_layers(layers, stages), balanced_layers(model, stages)
    assert sum(usual) == layers
    assert max(usual) - min(usual) <= 1
    assert usual[-1] == min(usual)
    if balanced:
        assert sum(balanced) == layers
        assert balanced[-1] == min(balanced) >= 1
