"""What configs leave out is what the classes of transformers have."""

from __future__ import annotations

from typing import Any, Final

import pytest

from domino_tune.store.formats.hf_config import REQUIRED, from_hf_config
from domino_tune.store.formats.hf_families import FAMILIES

transformers = pytest.importorskip("transformers")
NAMED: Final[dict[str, dict[str, Any]]] = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""Keys for which a class has null, so that configs name them."""


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_config_of_few_keys_is_that_of_its_class(model_type: str) -> None:
    named = NAMED.get(model_type, {})
    whole = transformers.CONFIG_MAPPING[model_type](**named).to_dict()
    sizes = {name: FAMILIES[model_type].sizes[name] for name in REQUIRED}
    few = {"model_type": model_type, **sizes, **named}
    assert from_hf_config(few, name="it").spec == from_hf_config(whole, name="it").spec
    nested = {"model_type": "outer", "text_config": {"model_type": model_type, **named}}
    assert from_hf_config(nested, name="it").spec == from_hf_config(whole, name="it").spec
