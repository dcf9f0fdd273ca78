"""What a model that plays a plan refuses: copies, wrappers, doubts, second derivatives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, ClassVar, Final, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.distributed._composable.contract import REGISTRY_KEY

from domino_tune.base.errors import RunError
from simulator.errors import InputError

_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by size in bytes: sums of them are exact, in whatever order a device adds."""


def check_agreed(model: nn.Module, **given: Any) -> None:
    """Raise InputError, on all ranks, unless all have the same weights and were ``given`` the same.

    DDP would send rank 0's weights to all; here each rank cuts its shard from its own.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    mine = {"weights": _digest(model), **{name: repr(value) for name, value in given.items()}}
    ranks: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, mine)
    for name in mine:
        other = next((at for at, one in enumerate(ranks) if one[name] != ranks[0][name]), None)
        if other is not None:
            raise InputError(
                f"Ranks 0 and {other} have different {name}. Give apply the same on all ranks: "
                "load the same checkpoint, or call torch.manual_seed before a model is made."
            )


def _digest(model: nn.Module) -> str:
    """Return a checksum of all parameters and their names."""
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue  # each rank reads its part of one folder
        words = parameter.detach().contiguous().view(_WORDS[parameter.element_size()])
        found.update(f"{name} {tuple(words.shape)} {words.sum(dtype=torch.int64).item()}".encode())
    return found.hexdigest()


class NotCopied:
    """A part of a model that plays a plan; ``deepcopy`` and ``pickle`` raise InputError."""

    def __reduce_ex__(self, _: Any) -> Any:
        raise InputError(
            "A model that plays a plan is not copied: its layers are one with process groups. For "
            "an average of weights, keep clones of its parameters; for a second model, load it "
            "again and apply the plan; for a file, save_pretrained."
        )


class InParts(dict[str, Any]):
    """A state dict with this rank's part only. A file of it would be loaded as if it were whole, so
    ``pickle`` raises InputError with ``refusal``."""

    refusal: ClassVar[str]

    def __reduce_ex__(self, _: Any) -> Any:
        raise InputError(self.refusal)


# What torch.compile leaves as it is ---------------------------------------------------------------
# It issues collectives, and keeps state.

Function = TypeVar("Function", bound=Callable[..., Any])


def eager(function: Function) -> Function:
    """Return ``function``, which is not compiled, and neither is what it calls."""
    found: Function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return found


# What a batch's tensors must fulfil, read without keeping the host from launching ahead -----------
# To read a number that a GPU has yet to compute makes the host wait for all that was launched. So
# only the first answer is waited for when it is asked for. Of a later one a copy is under way while
# forward is launched, and it is read when backward begins: on every rank alike, before any
# gradient, and while the GPU still has that forward to do.


@dataclass(kw_only=True)
class Doubts:
    """Answers that are still to be read. ``defers``: to read one makes the host wait, as on a
    GPU."""

    defers: bool
    _open: list[tuple[Callable[[], bool], str]] = field(default_factory=list)
    _trusted: bool = False

    @eager
    def require(self, holds: torch.Tensor, refusal: str) -> None:
        """Raise InputError(refusal) unless ``holds``, one truth on its device: now, or at the next
        ``settle``. Without gradients no backward will settle it, so it is now. A captured graph has
        no answer yet, and none is looked for."""
        if captures(holds):
            return
        self._open.append((_under_way(holds), refusal))
        if not (self.defers and self._trusted and torch.is_grad_enabled()):
            self.settle()
        self._trusted = True

    @eager
    def settle(self) -> None:
        """Raise InputError for the first that does not hold."""
        found, self._open = self._open, []
        for holds, refusal in found:
            if not holds():
                raise InputError(refusal)


def captures(tensor: torch.Tensor) -> bool:
    """Return whether what is done with ``tensor`` becomes a CUDA graph, whose capture no host may
    wait in."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _under_way(holds: torch.Tensor) -> Callable[[], bool]:
    """Return what waits for ``holds``, and no longer, and returns it."""
    if not holds.is_cuda:
        return partial(bool, holds)
    host = torch.empty((), dtype=torch.bool, pin_memory=True)
    host.copy_(holds, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> bool:
        copied.synchronize()
        return bool(host)

    return read


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


# What must not be put around a model that plays a plan, and refusals where somebody tries ---------

_CHANGES: Final = (
    "resize_token_embeddings", "set_input_embeddings", "set_output_embeddings",
)  # fmt: skip


NOT_SHARDED: Final = (
    "A model that plays a plan is not wrapped by fully_shard or FSDP: its layers are one function, "
    "and its gradients are averaged over replicas already. Leave the wrapper out."
)


class _NotSharded(dict[str, Any]):
    """torch's record of the wrappers of a module; ``fully_shard`` reads it first."""

    def __contains__(self, name: object) -> bool:
        if name == "fully_shard":
            raise InputError(NOT_SHARDED)
        return False


class _NotReplicated:
    """The names of parameters that DDP ignores; DDP reads them first."""

    def __iter__(self) -> Iterator[str]:
        raise InputError(
            "DDP does not take parameters that are cut over ranks. A model that plays a plan "
            "averages its gradients over replicas itself: leave DDP out; for transformers' Trainer "
            "take PlanTrainer (domino_tune.runtime.huggingface.trainer), with Accelerate "
            "prepare_model(model, evaluation_mode=True)."
        )


def refuse_wrappers(model: nn.Module, *, cut: bool) -> None:
    """Have torch's wrappers and changes of the vocabulary refused in words; ``cut``: parameters
    are cut over ranks, which DDP does not take."""
    for module in model.modules():
        module.__dict__[REGISTRY_KEY] = _NotSharded()
    if cut:
        model._ddp_params_and_buffers_to_ignore = _NotReplicated()  # type: ignore[assignment]
    for name in _CHANGES:
        setattr(model, name, partial(_refuse, name))


def stay_on_the_host(model: nn.Module) -> None:
    """Let ``model.to`` do nothing where the model is on the CPU and shall be: torch copies what it
    moves to ``cpu:0``, as Trainer does, and the plan would play the original."""
    moved: Any = model.to

    def to(*arguments: Any, **named: Any) -> nn.Module:
        device, dtype, *_ = torch._C._nn._parse_to(*arguments, **named)
        here = next(model.parameters())
        is_there = device is not None and device.type == here.device.type == "cpu"
        if is_there and dtype in (None, here.dtype):
            return model
        found: nn.Module = moved(*arguments, **named)
        return found

    model.to = to  # type: ignore[method-assign]


def _refuse(name: str, *_: Any, **__: Any) -> None:
    raise InputError(
        f"{name} changes parameters that the plan holds: call it before apply, make the plan for "
        "the vocabulary that results, and apply that."
    )
