"""Peak memory of a step: counted tensor by tensor on CPU, asked of the allocator on CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from domino_tune.runtime.executor import Executor
from domino_tune.runtime.ops.state import State
from domino_tune.runtime.parameters import Parameters

KEPT: Final = frozenset({"rope", "grad_norm"})
"""What a state may keep from one step to the next."""


class Watched(dict[str, torch.Tensor]):
    """A state's values that remember the most bytes alive, saved tensors included."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.all_peak = state, 0

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        super().__setitem__(name, value)
        saved = (kept for key, kept in self.state.saved.items() if key not in KEPT)
        self.all_peak = max(self.all_peak, storage_bytes([*self.values(), *saved]))


def storage_bytes(kept: Iterable[Any]) -> int:
    """Bytes of distinct storages: values in place of others cost nothing."""
    storages = (tensor.untyped_storage() for tensor in _tensors(kept))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _tensors(kept: Iterable[Any]) -> Iterator[torch.Tensor]:
    for item in kept:
        if isinstance(item, torch.Tensor):
            yield item
        else:
            yield from _tensors(item)


def step_peak_bytes(executor: Executor, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
    """Most bytes alive at once during one step, parameters included: live tensors on CPU, the
    allocator's figure on CUDA. The step is slower than others on CPU: do not time it."""
    if executor.state.parameters.main.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        executor.run_step(*batch)
        return int(torch.cuda.max_memory_allocated())
    plain = executor.state.values
    watched = executor.state.values = Watched(executor.state)
    try:
        executor.run_step(*batch)
    finally:
        executor.state.values = plain
    return parameter_bytes(executor.state.parameters) + watched.all_peak


def parameter_bytes(p: Parameters) -> int:
    """Main parameters, gradients, moments, and the copy in the compute dtype."""
    return storage_bytes([p.main, p.grad, p.moment1, p.moment2, p.model_copy])
