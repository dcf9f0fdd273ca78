"""Parts of a layer that an option names: what backward computes again, what CUDA graphs replay.

``moe_act``, ``layernorm`` and ``mla_up_proj`` discard their output once it was read, and play again
when the gradient of what read it is there (``CheckpointWithoutOutput`` in core/tensor_parallel/
random.py); ``core_attn``, ``mlp``, ``moe`` and ``shared_experts`` are checkpoints: they keep their
output and play again as a whole, with their collectives, before their backward. The FP8 cast of a
discarded output is discarded, too (``set_save_original_input``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, NamedTuple, get_args

from simulator.errors import InputError

RecomputeModule = Literal[
    "core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"
]
RECOMPUTE_MODULES: Final[tuple[RecomputeModule, ...]] = get_args(RecomputeModule)
Modules = tuple[RecomputeModule, ...]
CORE_ALONE: Final[Modules] = ("core_attn",)
"""What selective recomputation is where no modules are named."""
OF_EXPERTS: Final[Modules] = ("moe_act", "moe", "shared_experts")
"""Modules of layers with experts."""
WHOLE: Final[frozenset[RecomputeModule]] = frozenset(
    {"mla_up_proj", "mlp", "moe", "shared_experts"}
)
"""Modules that may have collectives, which then play again, too."""
OUTPUTS: Final = ("fc2", "residual")
"""Fragments that write a checkpoint's output: backward reads what forward wrote."""


class Replay(NamedTuple):
    """What a module plays again in a block. ``tokens``: fragment of a token -> fragments whose ops
    it plays; ``roles``: pattern of these ops; ``before``: they play
    before the first of these fragments of backward."""

    block: str
    tokens: dict[str, tuple[str, ...]]
    roles: str
    before: tuple[str, ...]


def _each(*fragments: str) -> dict[str, tuple[str, ...]]:
    return {name: (name,) for name in fragments}


REPLAYS: Final[dict[RecomputeModule, tuple[Replay, ...]]] = {
    "mlp": (
        Replay("mlp", _each("norm", "fc1", "act", "fc2"), r"mlp\.(?!norm$).*", ("residual_bwd",)),
    ),
    "moe": (
        Replay(
            "mlp", _each("norm", "fc1", "act", "fc2", "residual"), r"mlp\.(?!(norm|residual)$).*",
            ("residual_bwd",),
        ),
    ),
    "shared_experts": (Replay("mlp", _each("norm"), r"mlp\.shared.*", ("residual_bwd",)),),
    "layernorm": (
        Replay("attn", _each("norm"), r"attn\.norm(\.cast)?", ("residual_bwd",)),
        Replay("mlp", _each("norm"), r"mlp\.(norm(\.cast)?|shared\.in\.cast)", ("residual_bwd",)),
    ),
    "moe_act": (
        Replay("mlp", _each("act"), r"mlp\.act(_clamp|\.cast)?", ("fc2_wgrad", "act_bwd")),
    ),
    "mla_up_proj": (
        Replay(
            "attn", {"qkv": ("norm", "qkv", "core_attn")},
            r"attn\.((q|kv)_(norm|up)(\.cast)?|q|rope)", ("core_attn_bwd",),
        ),
    ),
    "core_attn": (Replay("attn", _each("core_attn"), "", ("core_attn_bwd",)),),
}  # fmt: skip
"""Module -> what it plays again. The roles of a core depend on its kernels
(``simulator/recomputation.py``). Norms of latent vectors are fused with the products after them.
Of two modules that share a token, the first says where it is issued."""


def fitting(modules: Iterable[RecomputeModule], *, experts: bool) -> Modules:
    """Return those modules that a layer has, with or without ``experts``."""
    absent = ("mlp",) if experts else OF_EXPERTS
    return tuple(name for name in modules if name not in absent)


def tokens_again(modules: Collection[RecomputeModule]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return (block, fragment of a token) -> fragments of backward; the token is issued before the
    first of them."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for name, replays in REPLAYS.items():
        for replay in replays if name in modules else ():
            for fragment in replay.tokens:
                found.setdefault((replay.block, fragment), replay.before)
    return found


def plays(replay: Replay, role: str) -> bool:
    """Return whether a module plays an op again."""
    return re.fullmatch(replay.roles, role) is not None


def check_recomputation(recompute: str, layers: int, modules: Modules, fp8_recipe: str) -> None:
    """Raise InputError for layers or modules that the kind of recomputation does not have, and for
    those that cannot be recomputed together, or with a recipe (Megatron-LM's rules in
    core/transformer/transformer_config.py)."""
    if layers and recompute in ("none", "per-op"):
        raise InputError(
            f"--recompute-layers needs --recompute full or selective, got {recompute} (per-op "
            "chooses among the ops of all layers); change one, or leave --recompute-layers out."
        )
    if recompute == "per-op" and fp8_recipe != "none":
        raise InputError(
            "--recompute per-op chooses among ops in BF16; with quantized layers use "
            "--recompute none, selective or full."
        )
    if modules and recompute != "selective":
        raise InputError(
            f"recompute_modules = {','.join(modules)} needs --recompute selective, got "
            f"{recompute}; change it, or leave the modules out."
        )
    inside = [name for name in ("moe_act", "shared_experts") if name in modules]
    if "moe" in modules and inside:
        raise InputError(
            f"The module moe is computed again as a whole, {' and '.join(inside)} within it; leave "
            "one of them out of recompute_modules."
        )
    discarded = [name for name in ("moe_act", "layernorm") if name in modules]
    if discarded and fp8_recipe == "delayed":
        raise InputError(
            f"Delayed scaling does not go with recompute_modules = {','.join(discarded)}, as in "
            "Megatron-LM; use another --fp8-recipe, or leave them out."
        )


def plays_again(recompute: str, modules: Modules) -> bool:
    """Return whether backward plays forward's ops, with their collectives, again."""
    return recompute in ("full", "per-op") or not WHOLE.isdisjoint(modules)


# Parts of layers that CUDA graphs replay ----------------------------------------------------------
# What Megatron-LM's ``--cuda-graph-scope`` names.
#
# A graph holds the compute and the collectives of its part, forward and backward. A host that
# replays one spends little on its ops; counts of tokens still stop it where an exchange needs them.
# Scopes of a layer that follow each other are one graph. It reads from memory of its own, so that
# what it is given is copied there first: forward the layer's input or the attention's output,
# backward the gradients of all that it returned (TransformerEngine, pytorch/graph.py: ``Graphed``).

GraphScope = Literal["attn", "moe_router", "moe_preprocess"]
GRAPH_SCOPES: Final[tuple[GraphScope, ...]] = get_args(GraphScope)
_ROLES: Final[Mapping[GraphScope, tuple[str, ...]]] = {
    "attn": ("attn.",),
    "moe_router": ("mlp.norm", "mlp.router", "mlp.topk", "mlp.shared"),
    "moe_preprocess": ("mlp.dispatch_permute",),
}
"""Scope -> how the roles of its ops begin, in layers with experts (core/transformer/
cuda_graphs.py; of the dispatchers' ``dispatch_preprocess`` only ``alltoall``'s moves tokens)."""


GRAPH_COPY: Final = "graph_copy"
"""Begins the name of a copy into a graph's memory, after its block."""


def graph_entry(
    block: str, fragment: str, scopes: Collection[str], *, experts: bool
) -> Literal["", "forward", "backward"]:
    """Return the pass whose graph begins with a fragment, of a layer with or without ``experts``;
    an empty text where none does."""
    routes = experts and "moe_router" in scopes
    first = "attn" if "attn" in scopes else "mlp" * routes
    if (block, fragment) == (first, "norm"):
        return "forward"
    last = ("mlp", "norm_bwd") if routes else (first, "residual_bwd")
    return "backward" if (block, fragment) == last else ""


def graphed(scopes: Collection[str], *, experts: bool) -> list[GraphScope]:
    """Return the parts of layers, with or without ``experts``, that graphs of ``scopes`` replay."""
    return [one for one in GRAPH_SCOPES if one in scopes and (experts or one == "attn")]


def is_replayed(role: str, scopes: Collection[str], *, experts: bool) -> bool:
    """Return whether an op of a layer, with or without ``experts``, is in one of the graphs."""
    if not scopes or GRAPH_COPY in role:
        return False
    return any(role.startswith(_ROLES[one]) for one in graphed(scopes, experts=experts))
