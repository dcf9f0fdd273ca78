"""Logits that ranks hold in parts, and what to do where torch cannot compute with them."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from simulator.errors import InputError


class CutLogits(DTensor):
    """Logits cut along the vocabulary; what torch computes of them is so, too."""

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute as with any DTensor; raise InputError where torch refuses, as beside an ordinary
        tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            try:
                found = func(*args, **(kwargs or {}))
            except (RuntimeError, NotImplementedError) as error:
                if "DTensor" not in str(error) and "sharding strategy" not in str(error):
                    raise
                raise InputError(
                    f"{func.__name__} met logits of which each rank has a part of the vocabulary. "
                    "Give labels to the model, whose loss needs no more than that, or compute with "
                    "logits.full_tensor()."
                ) from error
        return cut_logits(found) if type(found) is DTensor else found


def cut_logits(logits: DTensor) -> DTensor:
    """Return ``logits`` themselves, as CutLogits."""
    logits.__class__ = CutLogits
    return logits
