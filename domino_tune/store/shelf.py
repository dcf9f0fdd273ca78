"""Models by name or file, and the shelf where profiles and models are looked up by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from domino_tune.store.files import read_json
from domino_tune.store.formats.hf_config import ACTIVATIONS, field_name, from_hf_config
from domino_tune.store.parsing import parse
from domino_tune.store.profiles import load_profile
from simulator.errors import InputError, unknown_name
from simulator.presets import MODELS, NOTES
from simulator.profile import Profile
from simulator.specs import ModelSpec

# Our own model file -------------------------------------------------------------------------------
# The fields of ModelSpec as one JSON object.


def dump_model(model: ModelSpec) -> str:
    """Return the text of a model file."""
    return json.dumps(asdict(model), indent=2) + "\n"


def model_from_json(value: Any, *, source: str) -> ModelSpec:
    """Return the model of its JSON object. Raise InputError, which begins with ``source``."""
    return parse(ModelSpec, value, source=source, error=InputError)


# Models by name or file ---------------------------------------------------------------------------
# Presets, Hugging Face config.json files, model files of ours.

MAX_LISTED: Final = 8


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model, and ``notes`` for the user on how it was read."""

    spec: ModelSpec
    notes: tuple[str, ...] = ()


def load_model(text: str) -> LoadedModel:
    """Return a preset, or the model in a Hugging Face config.json or a model file. Raise InputError
    for an unknown name or a bad file."""
    if text in MODELS:
        notes = (f"{text}: {NOTES[text]}",) if text in NOTES else ()
        return LoadedModel(spec=MODELS[text], notes=notes)
    path = Path(text)
    if path.is_dir():
        path = path / "config.json"
    if not (path.is_file() or text.endswith(".json") or os.sep in text):
        error = unknown_name("model", text, MODELS)
        raise InputError(f"{error} Or give a config.json of Hugging Face, or a model file.")
    content = read_json(path, what="Model file", error=InputError)
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return read_model(content, name=name, source=f"Model file {text!r}")


def read_model(content: Mapping[str, Any], *, name: str, source: str) -> LoadedModel:
    """Return the model of a JSON object: of a model file, else of a Hugging Face config.

    ``name`` is the name of a config's model. Raise InputError; for a model file it begins with
    ``source``.
    """
    if "model_type" not in content and "architectures" not in content:
        return LoadedModel(spec=model_from_json(content, source=source))
    model = from_hf_config(content, name=name)
    notes = list(model.notes)
    if model.ignored:
        shown = ", ".join(model.ignored[:MAX_LISTED])
        more = len(model.ignored) - MAX_LISTED
        rest = f" and {more} more" if more > 0 else ""
        notes.append(f"{name}: keys that do not matter to shape were ignored: {shown}{rest}.")
    return LoadedModel(spec=model.spec, notes=tuple(notes))


def override(model: ModelSpec, overrides: Iterable[str]) -> ModelSpec:
    """Return ``model`` with ``FIELD=VALUE`` pairs applied; FIELD is a Hugging Face name.

    Fields that follow from a changed one change with it unless they are set too: key-value heads
    (where there are as many as heads), head size, and an MLP four times as wide as the model. Raise
    InputError for an unknown field, a bad value, or values that do not fit each other.
    """
    try:
        return _overridden(model, overrides)
    except InputError as error:
        raise error.at("overrides") from None


def _overridden(model: ModelSpec, overrides: Iterable[str]) -> ModelSpec:
    pairs = [_parse_override(text) for text in overrides]
    changes = dict(pairs)
    if len(changes) != len(pairs):
        raise InputError("--set names one field twice; keep one of them.")
    if not changes:
        return model
    heads = changes.get("num_attention_heads", model.num_attention_heads)
    hidden = changes.get("hidden_size", model.hidden_size)
    if model.num_key_value_heads == model.num_attention_heads:
        changes.setdefault("num_key_value_heads", heads)
    if model.intermediate_size == 4 * model.hidden_size:
        changes.setdefault("intermediate_size", 4 * hidden)
    if model.attention_size == model.hidden_size and "head_dim" not in changes:
        if heads < 1 or hidden % heads:
            raise InputError(
                f"hidden_size = {hidden} does not divide by num_attention_heads = {heads}; "
                f"heads that work: {_divisors_near(hidden, heads)}; or set head_dim too."
            )
        changes["head_dim"] = hidden // heads
    if all(getattr(model, key) == value for key, value in changes.items()):
        return model
    changed = ", ".join(f"{key}={changes[key]}" for key, _ in pairs)
    return ModelSpec(**{**asdict(model), **changes, "name": f"{model.name} ({changed})"})


def _divisors_near(value: int, near: int) -> str:
    divisors = [d for d in range(1, value + 1) if value % d == 0]
    closest = [d for d in divisors if d < near][-1:] + [d for d in divisors if d > near][:1]
    return " or ".join(str(d) for d in closest)


def _parse_override(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise InputError(f"--set wants FIELD=VALUE, got {text!r}; say, num_hidden_layers=40.")
    key = field_name(name.strip())
    kind = get_type_hints(ModelSpec)[key]
    return key, _convert(name, kind, value.strip())


def _convert(name: str, kind: Any, text: str) -> Any:
    if choices := get_args(kind):
        value = ACTIVATIONS.get(text, text) if "silu" in choices else text
        if value not in choices:
            raise unknown_name(name, text, choices)
        return value
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(f"--set {name} wants true or false, got {text!r}.")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise InputError(f"--set {name} wants {what}, got {text!r}.") from None


class Shelf(NamedTuple):
    """Where names are looked up; on disk, if not said otherwise. Both raise InputError for an
    unknown name; ``model`` is as stored, before a request's overrides."""

    profile: Callable[[str], Profile] = load_profile
    model: Callable[[str], LoadedModel] = load_model


DISK: Final = Shelf()
