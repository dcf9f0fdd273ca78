"""A model's shape from a Hugging Face config.json, by a mapping of our own."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, get_type_hints

from domino_tune.store.formats.hf_families import FAMILIES, Family, layers_type
from domino_tune.store.parsing import parse
from simulator.errors import InputError, unknown_name
from simulator.specs import ModelSpec

ACTIVATIONS: Final = {
    "gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu",
    "gelu_python": "gelu", "silu": "silu", "swish": "silu", "relu": "relu",
}  # fmt: skip
ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("n_layer", "num_layers"),
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head", "num_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "n_ctx"),
    "hidden_act": ("activation_function", "activation", "hidden_activation"),
    "hidden_dropout": ("resid_pdrop", "dropout"),
    "attention_dropout": ("attn_pdrop",),
    "norm_eps": ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
    "attention_bias": ("enable_bias", "bias"),
    "mlp_bias": ("enable_bias", "bias"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
}
"""Names of one ModelSpec field in the configurations of the various families."""
FIELD_NAMES: Final[dict[str, str]] = {
    **{alias: ours for ours, theirs in reversed(ALIASES.items()) for alias in theirs},
    **{item.name: item.name for item in fields(ModelSpec) if item.name != "name"},
}
"""Hugging Face name -> ModelSpec field; of two fields with one name, the first above."""
DEFAULT_WINDOW_LAYERS: Final = 28
"""``max_window_layers`` of Qwen: so many layers, from the first, attend to the whole sequence."""
LARGEST: Final = 10**9
"""Upper limit of every number of a model."""
EXPERT_TYPES: Final = frozenset({"dbrx", "jamba", "switch_transformers", "minimax"})
"""Mixtures of experts that are not read and whose ``model_type`` does not contain ``moe``."""
OF_EXPERTS: Final = (
    "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    "shared_expert_intermediate_size", "first_k_dense_replace", "q_lora_rank", "kv_lora_rank",
    "qk_rope_head_dim", "v_head_dim", "num_nextn_predict_layers", "swiglu_limit",
)  # fmt: skip
"""Fields that only families with experts have."""
FP8: Final = re.compile("fp8|float8|e4m3|e5m2|float-quantized", re.IGNORECASE)
"""What names 8-bit floats in a config's dtype and quantization_config."""
NULLABLE: Final = (
    "attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "q_lora_rank",
    "num_nextn_predict_layers", "swiglu_limit",
)  # fmt: skip
"""Fields that null or false turns off; without the key they have the family's default."""
WINDOWED: Final = ("sliding_attention", "chunked_attention")
"""Kinds of layers that a window limits."""
NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys under which multimodal models hold the config of their language model."""
OWN_FILE: Final = (
    "Where its layers are like GPT's or Llama's, write a model file of your own: the fields of "
    'ModelSpec as JSON (docs/python.md, "Models and profiles of your own").'
)
SCALING: Final = {
    "factor": "rope_scaling_factor",
    "low_freq_factor": "rope_low_freq_factor",
    "high_freq_factor": "rope_high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}
"""Keys of Llama 3.1's ``rope_scaling`` -> fields."""
_HINTS: Final = get_type_hints(ModelSpec)
CAUSAL: Final = re.compile("CausalLM|LMHead|ConditionalGeneration|Chat|LM$")
"""What the names of models with a head over the vocabulary have."""
REQUIRED: Final = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, kw_only=True)
class HfModel:
    """A converted config: the model, the keys that do not change its shape, and notes."""

    spec: ModelSpec
    ignored: tuple[str, ...]
    notes: tuple[str, ...]


def from_hf_config(config: Mapping[str, Any], *, name: str, is_nested: bool = False) -> HfModel:
    """Return the model of the config.json of a decoder-only model.

    Of a multimodal model it is the language model, with a note. Raise InputError, which names the
    key, for a missing or malformed key and any other model. ``is_nested``: of the config of a
    language model in that of a multimodal one, from which transformers leaves out what its class
    has anyway.
    """
    _refuse_unsupported(config, name)
    for key in NESTED:
        if isinstance(config.get(key), Mapping) and "num_hidden_layers" not in config:
            return _language_model(config, key, name)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(
            f"{name}: a Hugging Face config.json needs model_type, one of {', '.join(FAMILIES)}."
        )
    told = layers_type(model_type)
    if told not in FAMILIES:
        raise InputError(
            f"{name}: model_type = {model_type!r} is not read; known are {', '.join(FAMILIES)}. "
            f"{OWN_FILE}"
        )
    family = FAMILIES[told]
    _refuse_unusual(config, family, name)
    reader = _KeyReader({**config, "model_type": told}, name)
    values = reader.shape(family, is_nested=is_nested)
    alone = [] if told == model_type else [_text_alone(name, told)]
    departures = [
        f"{name}: {key} = {value!r} is not modelled; {text}."
        for key, (harmless, text) in family.departures.items()
        if (value := config.get(key, family.defaults.get(key))) is not None
        and value not in harmless
    ]  # fmt: skip
    notes = (
        *alone, *_storage(config, name), *(f"{name}: {text}" for text in family.notes),
        *_pricing(values, name), *_assumed(config, family, reader.assumed, name),
        *reader.scale_angles(values), *departures,
    )  # fmt: skip
    used = {*reader.used, *family.departures, *family.plain, "model_type"}
    ignored = tuple(sorted(key for key in config if key not in used))
    try:
        spec = ModelSpec(name=name, **values)
    except InputError as error:
        left = ", ".join(f"{one} = {size}" for one, size in reader.assumed.items())
        more = f" ({left} is what transformers has where a config says nothing; add it.)"
        raise InputError(f"{error}{more if left else ''}") from None
    return HfModel(spec=spec, ignored=ignored, notes=notes)


def _text_alone(name: str, told: str) -> str:
    return f"{name}: the language model alone is simulated, as {told}, without what surrounds it."


def _language_model(config: Mapping[str, Any], key: str, name: str) -> HfModel:
    """Return the language model that is nested under ``key``; what it does not say of its
    embeddings, the model around it does."""
    text, tied = dict(config[key]), "tie_word_embeddings"
    if "architectures" in config:
        text.setdefault("architectures", config["architectures"])
    if tied in config:
        text.setdefault(tied, config[tied])
    try:
        found = from_hf_config(text, name=name, is_nested=True)
    except InputError as error:
        raise InputError(f"{error} (This is of its {key}.)") from None
    told = layers_type(str(text.get("model_type")))
    alone = [_text_alone(name, told)] if told in FAMILIES else []
    if tied in config and config[tied] != text[tied]:
        alone.append(
            f"{name}: {tied} is {text[tied]} as its {key} says, where the model around it says "
            f"{config[tied]}."
        )
    notes = tuple(dict.fromkeys((*alone, *found.notes)))
    return HfModel(spec=found.spec, ignored=found.ignored, notes=notes)


def field_name(name: str) -> str:
    """Return the ModelSpec field of a Hugging Face name. Raise InputError for an unknown name."""
    if name not in FIELD_NAMES:
        raise unknown_name("model field", name, FIELD_NAMES)
    return FIELD_NAMES[name]


def _assumed(
    config: Mapping[str, Any], family: Family, sizes: Mapping[str, int], name: str
) -> list[str]:
    """Return notes on what the config leaves open: ``sizes``, and what the model ends in."""
    found = []
    if left := [f"{one} = {size}" for one, size in sizes.items()]:
        found.append(f"{name}: {', '.join(left)}, as transformers has where a config says nothing.")
    if "num_nextn_predict_layers" in family.defaults and "num_nextn_predict_layers" not in config:
        found.append(
            f"{name}: one layer predicts a further token, as DeepSeek's own class has it where a "
            "config says nothing; set num_nextn_predict_layers=0 if none is trained."
        )
    ends = config.get("architectures")
    if isinstance(ends, list) and ends and not CAUSAL.search(str(ends[0])):
        found.append(
            f"{name}: architectures = {reprlib.repr(ends[0])}, but a head over the vocabulary and "
            "its loss are simulated, as of a causal language model."
        )
    return found


def _pricing(values: Mapping[str, Any], name: str) -> list[str]:
    """Return notes on what is priced by assumption."""
    if not values.get("attn_logit_softcapping"):
        return []
    return [
        f"{name}: attention is priced as it is without attn_logit_softcapping = "
        f"{values['attn_logit_softcapping']:g}, and counts as assumed."
    ]


def _refuse_unsupported(config: Mapping[str, Any], name: str) -> None:
    if config.get("is_encoder_decoder"):
        raise InputError(
            f"{name}: encoder-decoder models are not supported; use a decoder-only one."
        )
    _refuse_experts(config, name)
    projected, hidden = config.get("word_embed_proj_dim"), config.get("hidden_size")
    if projected is not None and projected != hidden:
        raise InputError(
            f"{name}: word_embed_proj_dim = {projected!r} differs from hidden_size = {hidden!r}; "
            "projected embeddings are not supported, use a model that has none."
        )


def _refuse_experts(config: Mapping[str, Any], name: str) -> None:
    """Raise InputError for a mixture of experts of a kind that is not read."""
    model_type = str(config.get("model_type"))
    known = FAMILIES.get(layers_type(model_type))
    if known and known.has_experts:
        return
    keys = ("num_experts", *ALIASES["num_experts"])
    found = [f"{key} = {config[key]!r}" for key in keys if config.get(key)]
    if model_type in EXPERT_TYPES or (known is None and "moe" in model_type):
        found.append(f"model_type = {model_type!r}")
    if found:
        read = [key for key, family in FAMILIES.items() if family.has_experts]
        raise InputError(
            f"{name}: this mixture of experts is not read (got {', '.join(found)}); those whose "
            f"model_type is one of {', '.join(read)} are. {OWN_FILE}"
        )


def _refuse_unusual(config: Mapping[str, Any], family: Family, name: str) -> None:
    """Raise InputError for layers that are not as those of a plain model of the family."""
    if family.has_experts:
        _refuse_dense_layers(config, name)
    for key, (read, meaning) in family.plain.items():
        value = config.get(key, read[0])
        if value not in read:
            raise InputError(
                f"{name}: {key} = {reprlib.repr(value)} means that {meaning}, which is not "
                f"simulated; only {key} = {read[0]!r} is."
            )


def _refuse_dense_layers(config: Mapping[str, Any], name: str) -> None:
    """Raise InputError where a list names only some of the layers as those with experts."""
    listed, layers = config.get("moe_layers"), config.get("num_hidden_layers")
    if isinstance(listed, list) and isinstance(layers, int) and len(listed) < layers:
        raise InputError(
            f"{name}: moe_layers = {reprlib.repr(listed)} means that only {len(listed)} of "
            f"{layers} layers have experts, which is not simulated; only experts in all layers are."
        )


def _storage(config: Mapping[str, Any], name: str) -> list[str]:
    """Return a note on weights that are stored in 8 bits."""
    for key in ("quantization_config", "torch_dtype", "dtype"):
        if FP8.search(json.dumps(config.get(key), default=str)):
            return [
                f"{name}: {key} = {reprlib.repr(config[key])} is how weights are stored; training "
                "is priced in --dtype, and its linear layers as --fp8-recipe says."
            ]
    return []


class _KeyReader:
    """Looks up fields under all their names and records which keys were used."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name
        self.used: set[str] = set()
        self.assumed: dict[str, int] = {}

    def shape(self, family: Family, *, is_nested: bool) -> dict[str, Any]:
        """Return the arguments of ModelSpec except the name and ``scale_angles``'."""
        values: dict[str, Any] = {}
        for item in fields(ModelSpec):
            if item.name == "name" or item.name in SCALING.values():
                continue
            if item.name in OF_EXPERTS and not family.has_experts:
                continue
            key = family.names.get(item.name, "")
            found = self._find(item.name, (key,) if key else ())
            if item.name in family.fixed:
                values[item.name] = family.fixed[item.name]
            elif item.name in NULLABLE and not self.config.get(key or item.name, True):
                values[item.name] = _HINTS[item.name](0)
            elif found is not None:
                values[item.name] = self._typed(item.name, found)
            elif item.name in family.defaults:
                values[item.name] = family.defaults[item.name]
            elif (size := self._usual(item.name, key, family, is_nested=is_nested)) is not None:
                values[item.name] = self.assumed[item.name] = size
            elif item.name in REQUIRED:
                names = " or ".join((item.name, *ALIASES.get(item.name, ())))
                raise InputError(f"{self.name}: the key {names} is missing; add it.")
        if values.get("kv_lora_rank"):
            self._derive_latent(values, family)
        self._derive(values)
        if self._has_no_window(family, values["num_hidden_layers"]):
            values["sliding_window"] = 0
        return values

    def _usual(self, field_: str, key: str, family: Family, *, is_nested: bool) -> int | None:
        """Return the size that the family's class has where a config does not name it; None for
        one that a config must name, and for null, which follows from other sizes."""
        name = key if key in family.sizes else field_
        if name in REQUIRED and not is_nested:
            return None
        named = {name, *ALIASES.get(name, ())} & {*self.config}
        return None if named else family.sizes.get(name)

    def _has_no_window(self, family: Family, layers: int) -> bool:
        """Return whether no layer uses the sliding window that the config names."""
        self.used.update(("layer_types", family.window_switch, "max_window_layers"))
        kinds = self.config.get("layer_types")
        if isinstance(kinds, list):
            return not any(kind in kinds for kind in WINDOWED)
        if not family.window_switch:
            return False
        whole = self.config.get("max_window_layers", DEFAULT_WINDOW_LAYERS)
        used = self.config.get(family.window_switch)
        return not used or (isinstance(whole, int) and whole >= layers)

    def _find(self, field_: str, names: tuple[str, ...] = ()) -> Any:
        for key in names or (field_, *ALIASES.get(field_, ())):
            if key in self.config:
                self.used.add(key)
                if self.config[key] is not None:
                    return self.config[key]
        nested = self.config.get("rope_parameters")  # where transformers 5 keeps it
        if field_ == "rope_theta" and isinstance(nested, Mapping):
            self.used.add("rope_parameters")
            return nested.get("rope_theta")
        return None

    def _typed(self, field_: str, value: Any) -> Any:
        if field_ == "hidden_act":
            if not isinstance(value, str) or value not in ACTIVATIONS:
                raise unknown_name(f"activation of {self.name}", str(value), ACTIVATIONS)
            return ACTIVATIONS[value]
        source = f"{self.name}: {field_}"
        typed = parse(_HINTS[field_], value, source=source, error=InputError)
        if typed > LARGEST:
            raise InputError(f"{source} must be at most {LARGEST}, got more.")
        return typed

    def scale_angles(self, values: dict[str, Any]) -> list[str]:
        """Fill in how rotary angles are scaled; return a note where real ranks do not scale so."""
        scaling = self.config.get("rope_scaling") or self.config.get("rope_parameters")
        if not isinstance(scaling, Mapping):
            return []
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind == "default":
            return []
        if kind != "llama3":
            return [
                f"{self.name}: rotary angles scaled by {kind!r} take the same time; real ranks "
                "play them unscaled."
            ]
        self.used.add("rope_scaling")
        for key, field_ in SCALING.items():
            if scaling.get(key) is not None:
                values[field_] = self._typed(field_, scaling[key])
        return []

    def _derive_latent(self, values: dict[str, Any], family: Family) -> None:
        """Fill in the fields that latent attention and its models' shared experts give."""
        self.used.update(("head_dim", "num_key_value_heads", "qk_head_dim"))
        values["num_key_value_heads"] = values["num_attention_heads"]
        self.assumed.pop("num_key_value_heads", None)
        values["head_dim"] = values["qk_rope_head_dim"] + self._whole("qk_nope_head_dim", family)
        shared = self._whole("n_shared_experts", family)
        values["shared_expert_intermediate_size"] = shared * values["moe_intermediate_size"]

    def _whole(self, key: str, family: Family) -> int:
        """Return the number of a key that is no field; null is 0."""
        self.used.add(key)
        value = self.config.get(key, family.defaults[key]) or 0
        found: int = parse(int, value, source=f"{self.name}: {key}", error=InputError)
        return found

    def _derive(self, values: dict[str, Any]) -> None:
        """Fill in the fields that follow from the heads and the hidden size."""
        heads, hidden = values["num_attention_heads"], values["hidden_size"]
        if self.config.get("model_type") == "falcon" and not self.config.get(
            "new_decoder_architecture"
        ):
            self.used.update(("multi_query", "new_decoder_architecture"))
            values["num_key_value_heads"] = 1 if self.config.get("multi_query", True) else heads
        values.setdefault("num_key_value_heads", heads)
        if "head_dim" not in values:
            if not isinstance(heads, int) or heads < 1 or hidden % heads:
                raise InputError(
                    f"{self.name}: hidden_size = {hidden} does not divide by num_attention_heads = "
                    f"{heads}; correct one, or add head_dim."
                )
            values["head_dim"] = hidden // heads
        values.setdefault("intermediate_size", 4 * hidden)
