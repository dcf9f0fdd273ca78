"""Our own model file: the fields of ModelSpec as one JSON object, strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any, get_args, get_type_hints

from simulator.errors import InputError, unknown_name
from simulator.specs import ModelSpec


def model_to_json(model: ModelSpec) -> dict[str, Any]:
    """The model as plain JSON; ``model_from_json`` is its inverse."""
    return asdict(model)


def dump_model(model: ModelSpec) -> str:
    """The text of a model file."""
    return json.dumps(model_to_json(model), indent=2) + "\n"


def model_from_json(plain: Mapping[str, Any], *, source: str) -> ModelSpec:
    """A model from parsed JSON. Raises InputError for a missing, unknown or malformed key."""
    known = {item.name: item for item in fields(ModelSpec)}
    for key in plain:
        if key not in known:
            raise InputError(f"{source}: {unknown_name('key', key, known)}")
    for key, item in known.items():
        if key not in plain and item.default is MISSING:
            raise InputError(f"{source}: the key {key!r} is missing; add it.")
    hints = get_type_hints(ModelSpec)
    for key, value in plain.items():
        _check_type(source, key, hints[key], value)
    try:
        return ModelSpec(**plain)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _check_type(source: str, key: str, kind: Any, value: Any) -> None:
    choices = get_args(kind)
    if choices:
        if value not in choices:
            raise InputError(f"{source}: {key} must be one of {', '.join(choices)}, got {value!r}.")
        return
    good = isinstance(value, (int, float) if kind is float else kind)
    if not good or (kind is not bool and isinstance(value, bool)):
        raise InputError(f"{source}: {key} must be of type {kind.__name__}, got {value!r}.")
