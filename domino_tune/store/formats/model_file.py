"""Our own model file: the fields of ModelSpec as one JSON object."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from domino_tune.store.parsing import parse
from simulator.errors import InputError
from simulator.specs import ModelSpec


def dump_model(model: ModelSpec) -> str:
    """Return the text of a model file."""
    return json.dumps(asdict(model), indent=2) + "\n"


def model_from_json(value: Any, *, source: str) -> ModelSpec:
    """Return the model of its JSON object. Raise InputError, which begins with ``source``."""
    return parse(ModelSpec, value, source=source, error=InputError)
