"""Backward passes that cannot be differentiated themselves, and say so."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from domino_tune.base.errors import RunError


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``backward`` of an autograd function, which raises RunError for create_graph=True.

    torch's ``once_differentiable`` notices only where a gradient comes in that needs one itself;
    what is saved by forward would be taken for a constant.
    """
    once = once_differentiable(backward)

    @wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RunError(
                "A model that plays a plan has no second derivatives: leave out create_graph=True "
                "(as for gradient penalties), or train without a plan."
            )
        return once(ctx, *gradients)

    return checked
