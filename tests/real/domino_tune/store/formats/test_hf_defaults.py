"""What a config.json leaves out is what transformers' own configuration classes say."""

from __future__ import annotations

from typing import Any

import pytest

from domino_tune.store.formats.hf_config import ALIASES, FAMILIES, REQUIRED, from_hf_config

TOLD = {
    "model_type", "num_key_value_heads", *REQUIRED,
    *(alias for name in REQUIRED for alias in ALIASES.get(name, ())),
}  # fmt: skip
"""Keys of each config; the others stand in some."""


def config(family: str, **told: Any) -> dict[str, Any]:
    """Return the config that transformers writes, whole."""
    from transformers import CONFIG_MAPPING

    written: dict[str, Any] = CONFIG_MAPPING[family](**told).to_dict()
    return written


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_of_a_family(family: str) -> None:
    whole = config(family)
    sizes = {key for key in whole if key in ("intermediate_size", "ffn_dim", "hidden_act")}
    told = {key: value for key, value in whole.items() if key in TOLD | sizes}
    assert from_hf_config(told, name="it").spec == from_hf_config(whole, name="it").spec


@pytest.mark.parametrize(("layers", "window"), [(28, 0), (29, 4096)])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_first_layers_that_attend_to_all_tokens(family: str, layers: int, window: int) -> None:
    whole = config(family, num_hidden_layers=layers, use_sliding_window=True)
    told = {key: value for key, value in whole.items() if key in {*TOLD, "use_sliding_window"}}
    assert from_hf_config(told, name="it").spec.sliding_window == window
    assert from_hf_config(whole, name="it").spec.sliding_window == window
