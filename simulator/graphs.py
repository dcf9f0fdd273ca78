"""Parts of layers that CUDA graphs replay: what Megatron-LM's ``--cuda-graph-scope`` names.

A graph holds the compute and the collectives of its part, forward and backward. A host that replays
one spends little on its ops; counts of tokens still stop it where an exchange needs them.
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


def is_replayed(role: str, scopes: Collection[str], *, experts: bool) -> bool:
    """Return whether an op of a layer, with or without ``experts``, is in one of the graphs."""
    parts = [one for one in GRAPH_SCOPES if one in scopes and (experts or one == "attn")]
    return any(role.startswith(_ROLES[one]) for one in parts)
