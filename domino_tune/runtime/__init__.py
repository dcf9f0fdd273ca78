"""Runtime: plays schedules on real ranks with PyTorch, in runs of ours and in the user's models.

May import store, requests, base and the simulator. Inside it: huggingface | session and the jobs >
launch | executor > ops > lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from domino_tune.runtime.huggingface import apply

__all__ = ["apply"]


def __getattr__(name: str) -> Any:
    """Return ``apply``, which needs torch, when it is first asked for."""
    if name != "apply":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from domino_tune.runtime.huggingface import apply

    return apply
