"""Where the models of ``transformers`` keep what the runtime plays, family by family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Family:
    """Paths inside a model: the stack of layers, the embeddings, the norm after the stack.

    ``modules`` maps a weight of the runtime's layers (``attn.qkv``) to the modules, inside a layer,
    whose weights' rows follow each other in it. ``transposed``: linears are GPT-2's Conv1D, whose
    weights are [inputs, outputs]. ``fused``: the linear inside a layer that makes q, k and v at
    once. ``embedding_dropout``: the path of the dropout in front of the stack.
    """

    stack: str
    embedding: str
    replicated: tuple[str, ...]
    modules: Mapping[str, tuple[str, ...]]
    transposed: bool = False
    fused: str = ""
    embedding_dropout: str = ""


_NORMS: Final = {"attn.norm": ("input_layernorm",), "mlp.norm": ("post_attention_layernorm",)}
_LLAMA: Final = Family(
    stack="model.layers",
    embedding="model.embed_tokens",
    replicated=("model.norm",),
    modules={
        **_NORMS,
        "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn.proj": ("self_attn.o_proj",),
        "attn.qk_norm": ("self_attn.q_norm", "self_attn.k_norm"),
        "mlp.fc1": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.fc2": ("mlp.down_proj",),
    },
)
FAMILIES: Final[dict[str, Family]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gpt2": Family(
        stack="transformer.h",
        embedding="transformer.wte",
        replicated=("transformer.wpe", "transformer.ln_f"),
        modules={
            "attn.norm": ("ln_1",),
            "attn.qkv": ("attn.c_attn.q", "attn.c_attn.k", "attn.c_attn.v"),
            "attn.proj": ("attn.c_proj",),
            "mlp.norm": ("ln_2",),
            "mlp.fc1": ("mlp.c_fc",),
            "mlp.fc2": ("mlp.c_proj",),
        },
        transposed=True,
        fused="attn.c_attn",
        embedding_dropout="transformer.drop",
    ),
}
"""``model_type`` -> where its parts are."""
LINEARS: Final = ("Linear", "Conv1D")
NORMS: Final = (
    "LayerNorm", "LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Place:
    """A parameter of the model inside a tensor of the runtime's.

    ``weight``: the runtime's name; ``part`` and ``parts``: which of the modules it is of.
    """

    name: str
    weight: str
    part: int
    parts: int
    parameter: nn.Parameter = field(repr=False)


def places(family: Family, model: nn.Module) -> list[Place]:
    """Return the parameters of the stack, layer by layer."""
    found = []
    for number, layer in enumerate(model.get_submodule(family.stack).children()):
        for weight, modules in family.modules.items():
            for part, path in enumerate(modules):
                if not _has(layer, path):
                    continue
                for name, parameter in layer.get_submodule(path).named_parameters(recurse=False):
                    suffix = ".bias" if name == "bias" else ""
                    found.append(
                        Place(
                            name=f"{family.stack}.{number}.{path}.{name}",
                            weight=f"l{number}.w.{weight}{suffix}",
                            part=part,
                            parts=len(modules),
                            parameter=parameter,
                        )
                    )
    return found


def replace_at(model: nn.Module, path: str, part: object) -> None:
    """Replace the module or parameter at ``path``."""
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, part)


def _has(layer: nn.Module, path: str) -> bool:
    try:
        layer.get_submodule(path)
    except AttributeError:
        return False
    return True
