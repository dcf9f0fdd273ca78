"""Gradients of a stack: sums over ranks that arrive in slices, means over replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from domino_tune.runtime.huggingface.refusals import NotCopied
from domino_tune.runtime.huggingface.shard import ShardedParameter, ShardedStack, local
from domino_tune.runtime.lanes.lane import Handle, Lane, all_reduce, mean
from domino_tune.runtime.parameters import Shards, main_dtype_of
from simulator import optimizer

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


class Arriving(Tensor):
    """A tensor of ``parts``, each complete when its handle has been waited for.

    A stack waits for each part in turn. Any other reader needs no care: operators of torch wait for
    all and get an ordinary tensor.
    """

    parts: Sequence[Tensor]
    handles: Sequence[Handle]
    cut_along: int

    @staticmethod
    def of(like: Tensor, parts: Sequence[Tensor], handles: Sequence[Handle], dim: int) -> Arriving:
        """Return the tensor of the parts, of the shape of ``like``."""
        made: Arriving = Tensor._make_wrapper_subclass(
            Arriving, like.shape, dtype=like.dtype, device=like.device
        )
        made.parts, made.handles, made.cut_along = parts, handles, dim
        return made

    def whole(self) -> Tensor:
        """Wait for all parts; return them as one tensor."""
        for handle in self.handles:
            handle.wait()
        return torch.cat(tuple(self.parts), dim=self.cut_along)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Arriving({self.whole()!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute with the whole tensor."""
        args, kwargs = tree_map_only(Arriving, Arriving.whole, (args, kwargs or {}))
        return func(*args, **kwargs)


class _Sum(torch.autograd.Function):
    """A sum over the ranks, under way; backward the identity (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int], dim: int, lane: Lane) -> Tensor:
        parts = [part.contiguous() for part in torch.split(x.detach(), sizes, dim)]
        handles = [lane.issue("embed", all_reduce(part)) for part in parts]
        return Arriving.of(x, parts, handles, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return gradients[0], None, None, None


def arriving_sum(x: Tensor, sizes: list[int], dim: int, lane: Lane) -> Tensor:
    """Return the sum of ``x`` over the ranks of ``lane``, which comes in parts of these sizes."""
    y: Tensor = _Sum.apply(x, sizes, dim, lane)  # type: ignore[no-untyped-call]
    return y


# Data parallelism of a model that plays a plan ----------------------------------------------------
# Gradients are averaged during backward.
#
# DDP and FSDP hear of gradients from autograd, to which a stack is one function: it gives those of
# all layers at once. So their means begin within it, bucket by bucket, as the simulator prices
# them.


class Replicas(NotCopied):
    """Averages gradients over the ranks of ``lane``; None: there is one replica. Within
    ``no_sync``, which DDP and FSDP have too, gradients only add up.

    A stack's are sent by ``StackMeans``, any other as soon as autograd has added to it. When
    backward has ended, all means are waited for, and what was not sent is: gradients of earlier
    micro-batches alone, and those to which a hook or another use of the parameter has added.
    """

    def __init__(self, lane: Lane | None) -> None:
        self._lane = lane
        self._synchronises = True
        self._in_ddp = False
        self._backward = -1
        self._sent: dict[nn.Parameter, int] = {}
        self._under_way: list[tuple[Handle, Tensor, Tensor]] = []

    def watch(self, model: nn.Module, stack: ShardedStack) -> None:
        """Average the gradients of ``model``, whose layers are ``stack``, from now on."""
        if self._lane is None:
            return
        self._model = model
        self._in_stack = {held.parameter for held in stack.held}
        model.register_forward_pre_hook(self._notice_ddp)
        for parameter in model.parameters():
            trained = parameter.requires_grad
            parameter.requires_grad_(True)  # torch hooks no others; this one may be trained later
            parameter.register_post_accumulate_grad_hook(self._added)  # type: ignore[no-untyped-call]
            parameter.requires_grad_(trained)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients as they are within this context: for all but the last micro-batch."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    @property
    def averages(self) -> bool:
        """Return whether the gradients of backward are averaged here."""
        return self._lane is not None and self._synchronises and not self._in_ddp

    def begin(self) -> None:
        """Have the backward pass that is under way end with all gradients averaged."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self.wait()  # since a pass that failed may have left some
            self._sent.clear()
            self._backward = backward
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def send(self, gradient: Tensor) -> None:
        """Begin to average ``gradient`` in place."""
        assert self._lane is not None
        sent = gradient.contiguous()
        self._under_way.append((self._lane.issue("replicas", mean(sent)), sent, gradient))

    def note(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Hear that ``gradient`` has been sent, which becomes that of ``parameter``."""
        self._sent[parameter] = gradient.data_ptr()

    def wait(self) -> None:
        """Wait for all means that were sent."""
        for handle, sent, gradient in self._under_way:
            handle.wait()
            if sent is not gradient:
                gradient.copy_(sent)
        self._under_way.clear()

    def _notice_ddp(self, *_: object) -> None:
        """Leave averaging to DDP where a user, or Accelerate, has wrapped the model in it."""
        self._in_ddp = DistributedDataParallel._active_ddp_module is not None

    def _added(self, parameter: nn.Parameter) -> None:
        self.begin()
        if self.averages and parameter not in self._in_stack:
            self._send_gradient(parameter)

    def _send_gradient(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        gradient = local(parameter.grad)
        self.note(parameter, gradient)
        self.send(gradient)

    def _end(self) -> None:
        for parameter in self._model.parameters() if self.averages else ():
            grad = parameter.grad
            if grad is not None and self._sent.get(parameter) != local(grad).data_ptr():
                self._send_gradient(parameter)
        self.wait()
        self._sent.clear()


@dataclass(frozen=True)
class Bucket:
    """Gradients that are averaged together, a range of a stack's flat tensor. ``matrices``: those
    that must be complete before; none of vectors, which are complete when backward is."""

    start: int
    end: int
    matrices: frozenset[str]
    held: tuple[ShardedParameter, ...]


def buckets_of(stack: ShardedStack) -> list[Bucket]:
    """Return a stack's buckets: matrices of layers, the last first, as many as Megatron-LM takes
    and the simulator prices; then all vectors."""
    shards = stack.shards
    specs = [one for one in shards.specs if one.is_matrix]
    found, end = [], len(specs)
    for start in range(len(specs) - 1, -1, -1):
        if start and specs[start - 1].owner == specs[start].owner:
            continue
        size = shards.ranges[end - 1][1] - shards.ranges[start][0]
        if not start or size >= optimizer.DP_BUCKET_PARAMETERS:
            found.append(_bucket(stack, start, end))
            end = start
    return [*found, _bucket(stack, len(specs), len(shards.specs))]


def _bucket(stack: ShardedStack, first: int, last: int) -> Bucket:
    ranges, specs = stack.shards.ranges, stack.shards.specs[first:last]
    names = {one.name for one in specs}
    return Bucket(
        start=ranges[first][0], end=ranges[last - 1][1],
        matrices=frozenset(one.name for one in specs if one.is_matrix),
        held=tuple(held for held in stack.held if held.weight in names),
    )  # fmt: skip


class StackMeans:
    """Averages ``gradients`` of a stack over replicas, within one pass of its backward.

    Each bucket is sent when its last matrix is complete. Gradients of earlier micro-batches are in
    ``parameter.grad``: they are taken from there, so that the mean is of all. Buckets with a
    parameter that has a hook of the user's are left to the end of backward: the hook gets the
    gradient of this rank and micro-batch.
    """

    def __init__(
        self, replicas: Replicas, buckets: Sequence[Bucket], gradients: Gradients,
        needed: frozenset[torch.nn.Parameter],
    ) -> None:  # fmt: skip
        self._replicas, self._needed = replicas, needed
        self._flat, self._views = gradients.grad, gradients.rounded
        self._open = [(one, set(one.matrices)) for one in buckets]
        replicas.begin()

    def complete(self, name: str) -> None:
        """Send what was waiting for the gradient of a matrix."""
        for bucket, left in self._open:
            left.discard(name)
            if not left and name in bucket.matrices:
                self._send(bucket)

    def finish(self) -> None:
        """Send the vectors, and wait for all."""
        for bucket, _ in self._open:
            if not bucket.matrices:
                self._send(bucket)
        self._replicas.wait()

    def _send(self, bucket: Bucket) -> None:
        held = [one for one in bucket.held if one.parameter in self._needed]
        if not held or any(one.parameter._backward_hooks for one in held):
            return
        for one in held:
            mine = one.view(self._views)
            if one.parameter.grad is not None:
                mine.add_(local(one.parameter.grad))
                one.parameter.grad = None
            self._replicas.note(one.parameter, mine)
        self._replicas.send(self._flat[bucket.start : bucket.end])


def added_to(ctx: Any, parameters: Sequence[torch.nn.Parameter]) -> frozenset[torch.nn.Parameter]:
    """Return those of ``parameters``, the last inputs of an autograd function whose backward runs,
    to whose ``grad`` it adds; none for torch.autograd.grad, which leaves ``grad`` as it is."""
    nodes = [node for node, _ in ctx.next_functions[-len(parameters) :]]
    needed = ctx.needs_input_grad[-len(parameters) :]
    found = [
        (one, node) for one, node, wanted in zip(parameters, nodes, needed, strict=True) if wanted
    ]
    try:
        return frozenset(one for one, node in found if torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return frozenset()
