"""Our own model file: the fields of ModelSpec as one JSON object, strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from domino_tune.store.strict import strict
from simulator.errors import InputError
from simulator.specs import ModelSpec


def dump_model(model: ModelSpec) -> str:
    """The text of a model file."""
    return json.dumps(asdict(model), indent=2) + "\n"


def model_from_json(parsed: Mapping[str, Any], *, source: str) -> ModelSpec:
    """A model from parsed JSON. Raises InputError for a missing, unknown or malformed key."""
    return strict(ModelSpec, parsed, source=source, error=InputError)
