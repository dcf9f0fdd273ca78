"""What a config.json leaves out is what transformers' own configuration classes say."""

from __future__ import annotations

from typing import Any

import pytest

from domino_tune.store.formats.hf_config import ALIASES, REQUIRED, from_hf_config
from domino_tune.store.formats.hf_families import FAMILIES

TOLD = {
    "model_type", "num_key_value_heads", *REQUIRED,
    *(alias for name in REQUIRED for alias in ALIASES.get(name, ())),
}  # fmt: skip
"""Keys of each config; the others stand in some."""
NO_DEFAULT = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""Keys of a family that every config must give."""


def config(family: str, **told: Any) -> dict[str, Any]:
    """Return the config that transformers writes, whole."""
    from transformers import CONFIG_MAPPING

    written: dict[str, Any] = CONFIG_MAPPING[family](**told).to_dict()
    return written


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_of_a_family(family: str) -> None:
    needed = NO_DEFAULT.get(family, {})
    whole = config(family, **needed)
    given = ("intermediate_size", "ffn_dim", "hidden_act", *needed)
    told = {key: value for key, value in whole.items() if key in TOLD | {*given}}
    assert from_hf_config(told, name="it").spec == from_hf_config(whole, name="it").spec


@pytest.mark.parametrize(("layers", "window"), [(28, 0), (29, 4096)])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_first_layers_that_attend_to_all_tokens(family: str, layers: int, window: int) -> None:
    whole = config(family, num_hidden_layers=layers, use_sliding_window=True)
    told = {key: value for key, value in whole.items() if key in {*TOLD, "use_sliding_window"}}
    assert from_hf_config(told, name="it").spec.sliding_window == window
    assert from_hf_config(whole, name="it").spec.sliding_window == window
