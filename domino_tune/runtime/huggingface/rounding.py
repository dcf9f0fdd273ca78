"""Gradients of a stack in the dtype of its parameters, of which fp32 never holds a whole copy."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from domino_tune.runtime.shards import Shards, main_dtype_of

Tensor = torch.Tensor


class _Sums(dict[str, Tensor]):
    """Sums by name, each made when it is first asked for."""

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._like = like

    def __missing__(self, name: str) -> Tensor:
        view = self._like[name]
        self[name] = torch.empty(view.shape, dtype=main_dtype_of(view.dtype), device=view.device)
        return self[name]


class RoundedShards(Shards):
    """Weights like those of others, with gradients in ``flat``.

    ``products``: how many GEMMs add to each matrix. A single one writes to ``flat`` itself, where
    that has the dtype of its operands. Several add up in fp32 and are rounded behind the last;
    vectors, which are small and of which ranks may hold a part of the sum, at the end.
    """

    def __init__(self, like: Shards, flat: Tensor, products: Mapping[str, int]) -> None:
        self.__dict__.update(like.__dict__)
        self.grad, self._rounded = flat, self._views(flat)
        self._left = dict(products)
        self.grads = sums = _Sums(self._rounded)
        direct = flat.dtype == like.model_copy.dtype
        for name, view in self._rounded.items():
            if self._left.get(name) == 1 and direct:
                sums[name] = view
            elif name not in self._left:
                sums[name]

    def added(self, name: str) -> None:
        """Round the gradient of a matrix behind its last product."""
        self._left[name] -= 1
        if not self._left[name]:
            self._round(name)

    def finished(self) -> Mapping[str, Tensor]:
        """Return all gradients, rounded."""
        for name in [*self.grads]:
            self._round(name)
        return self._rounded

    def _round(self, name: str) -> None:
        sums = self.grads.pop(name)
        if sums is not self._rounded[name]:
            self._rounded[name].copy_(sums)
