"""Gradients of a stack in the dtype of its parameters, without a whole copy in fp32."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from domino_tune.runtime.shards import Shards, main_dtype_of

Tensor = torch.Tensor


class _Sums(dict[str, Tensor]):
    """Sums by name, each allocated at its first use."""

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._like = like

    def __missing__(self, name: str) -> Tensor:
        view = self._like[name]
        self[name] = torch.empty(view.shape, dtype=main_dtype_of(view.dtype), device=view.device)
        return self[name]


class Gradients(Shards):
    """Shards that share the weights of ``like`` and have their gradients in ``flat``.

    ``products``: how many GEMMs add to each matrix. Several add up in fp32 and are rounded after
    the last, unless ``flat`` is as wide; a single one writes to ``flat`` itself, if that has the
    dtype of its operands. Vectors are rounded at the end: they are small, and a rank may hold only
    a part of their sum. ``complete`` is called with each matrix's name after its last product.
    """

    complete: Callable[[str], object] = staticmethod(lambda _: None)

    def __init__(self, like: Shards, flat: Tensor, products: Mapping[str, int]) -> None:
        self.__dict__.update(like.__dict__)
        self.grad, self.rounded = flat, self._views(flat)
        self._left = dict(products)
        self.grads = sums = _Sums(self.rounded)
        computed = like.model_copy.dtype
        as_wide, direct = flat.dtype == main_dtype_of(computed), flat.dtype == computed
        for name, view in self.rounded.items():
            if as_wide or (direct and self._left.get(name) == 1):
                sums[name] = view
            elif name not in self._left:
                sums[name]

    def added(self, name: str) -> None:
        """Round the gradient of a matrix after its last product."""
        self._left[name] -= 1
        if not self._left[name]:
            self._round(name)
            self.complete(name)

    def finish(self) -> None:
        """Round all that is left."""
        for name in [*self.grads]:
            self._round(name)

    def _round(self, name: str) -> None:
        sums = self.grads.pop(name)
        if sums is not self.rounded[name]:
            self.rounded[name].copy_(sums)
