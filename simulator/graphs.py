"""Parts of layers that CUDA graphs replay: what Megatron-LM's ``--cuda-graph-scope`` names.

A graph holds the compute and the collectives of its part, forward and backward. A host that replays
one spends little on its ops; counts of tokens still stop it where an exchange needs them. Scopes of
a layer that follow each other are one graph. It reads from memory of its own, so that what it is
given is copied there first: forward the layer's input or the attention's output, backward the
gradients of all that it returned (TransformerEngine, pytorch/graph.py: ``Graphed``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal, get_args

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
    """Return of which pass a graph begins with a fragment, of a layer with or without
    ``experts``."""
    routes = experts and "moe_router" in scopes
    first = "attn" if "attn" in scopes else "mlp" * routes
    if (block, fragment) == (first, "norm"):
        return "forward"
    last = ("mlp", "norm_bwd") if routes else (first, "residual_bwd")
    return "backward" if (block, fragment) == last else ""


def is_replayed(role: str, scopes: Collection[str], *, experts: bool) -> bool:
    """Return whether an op of a layer, with or without ``experts``, is in one of the graphs."""
    if GRAPH_COPY in role:
        return False
    parts = [one for one in GRAPH_SCOPES if one in scopes and (experts or one == "attn")]
    return any(role.startswith(_ROLES[one]) for one in parts)
