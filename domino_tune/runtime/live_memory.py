"""Peak memory of a step: live tensors are counted on CPU, the allocator is asked on CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from domino_tune.runtime.executor import Executor
from domino_tune.runtime.ops.state import State
from domino_tune.runtime.parameters import Parameters

PERSISTENT: Final = frozenset({"rope", "grad_norm"})
"""Names of saved tensors that may live longer than a step."""


class WatchedValues(dict[str, torch.Tensor]):
    """A state's values; ``all_peak`` is the most bytes alive so far, saved tensors included."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.all_peak = state, 0

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        super().__setitem__(name, value)
        saved = (value for key, value in self.state.saved.items() if key not in PERSISTENT)
        self.all_peak = max(self.all_peak, storage_bytes([*self.values(), *saved]))


def storage_bytes(values: Iterable[Any]) -> int:
    """Return the bytes of the distinct storages: views of a storage count once."""
    storages = (tensor.untyped_storage() for tensor in _tensors(values))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for item in values:
        if isinstance(item, torch.Tensor):
            yield item
        else:
            yield from _tensors(item)


def step_peak_bytes(executor: Executor, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
    """Return the most bytes alive during one step, parameters included: of live tensors on CPU,
    the allocator's figure on CUDA. Counting slows the step on CPU: do not time it."""
    if executor.state.parameters.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        executor.run_step(*batch)
        return int(torch.cuda.max_memory_allocated())
    plain = executor.state.values
    watched = executor.state.values = WatchedValues(executor.state)
    try:
        executor.run_step(*batch)
    finally:
        executor.state.values = plain
    return parameter_bytes(executor.state.trained) + watched.all_peak


def parameter_bytes(p: Parameters) -> int:
    """Return the bytes of main parameters, gradients, moments and the compute-dtype copy."""
    return storage_bytes([p.main, p.grad, p.moment1, p.moment2, p.model_copy])
