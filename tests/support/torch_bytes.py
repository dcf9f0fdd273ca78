"""Bytes of torch's tensors that are alive at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that are made within, and the most that lived at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.most = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # so that the ops on its shards come here
        known = {self._key(one) for one in tree_leaves((args, kwargs)) if self._counts(one)}
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if self._counts(one) and self._key(one) not in self._seen | known:
                self._add(one.untyped_storage())
        return found

    @staticmethod
    def _counts(one: object) -> bool:
        """Return whether ``one`` has memory: other types wrap a tensor, or only have its shape."""
        plain = type(one) in (torch.Tensor, torch.nn.Parameter)
        return plain and isinstance(one, torch.Tensor) and one.device.type == "cpu"

    @staticmethod
    def _key(one: torch.Tensor) -> int:
        key: int = one.untyped_storage()._cdata
        return key

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._seen.add(key)
        self.alive += size
        self.most = max(self.most, self.alive)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.alive -= size


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most bytes of tensors made by ``work`` that were alive at once."""
    with Peak() as peak:
        work()
    most: int = peak.most
    return most
