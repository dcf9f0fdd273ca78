"""Embedding, final norm, head and loss of the user's model, over tensor-parallel ranks.

The embedding and the head are cut along the vocabulary, as in Megatron-LM (arXiv 1909.08053); the
rest is whole on every rank. In training the logits are a DTensor, since the loss needs this rank's
part only; in evaluation they are whole.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from domino_tune.runtime.huggingface.refusals import captures, eager, first_order
from domino_tune.runtime.huggingface.shard import distributed
from domino_tune.runtime.huggingface.weights import ModelPaths, replace_at
from domino_tune.runtime.lanes.lane import Lane, all_reduce
from domino_tune.runtime.ops.pointwise import keep_mask
from domino_tune.runtime.ops.pointwise_formulas import wide
from simulator.errors import InputError


class _AllReduce(torch.autograd.Function):
    """g: forward a sum over the ranks, in place; backward the identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def summed_at_once(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the sum of ``x`` over the ranks, in place."""
    y: torch.Tensor = _AllReduce.apply(x, group)  # type: ignore[no-untyped-call]
    return y


# Logits that ranks hold in parts, and what to do where torch cannot compute with them -------------


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


def drop_alike(module: nn.Module, seed: int, dp_rank: int) -> None:
    """Let ``module``, a Dropout, draw its masks from ``seed``, the replica and its count of calls.

    Torch would draw them from each rank's own generator, and the ranks' activations would differ.
    """
    calls = 0

    def forward(dropout: nn.Dropout, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        if not dropout.training or dropout.p == 0:
            return x
        calls += 1
        sequences, length, hidden = x.shape
        mask = keep_mask(
            range(dp_rank * sequences, (dp_rank + 1) * sequences), (length, hidden), dropout.p,
            seed=seed, step=calls, site="embed", device=x.device,
        )  # fmt: skip
        return x * mask.view_as(x) / (1 - dropout.p)

    module.forward = MethodType(forward, module)


# Embedding, final norm, head and loss of the user's model, over tensor-parallel ranks -------------

Tensor = torch.Tensor
Summed = Callable[[Tensor], Tensor]
CHECKED_EVERY: Final = 16
"""Micro-batches between comparisons of the ranks' tokens; each comparison makes the host wait."""


def shard_edges(
    model: nn.Module,
    family: ModelPaths,
    mesh: DeviceMesh,
    *,
    summed: Summed,
    slices: int,
    lane: Lane,
) -> None:
    """Cut embedding and head over ``mesh``; make the rest DTensors that every rank holds whole.

    ``summed`` adds up the embedding's output over the ranks; the head sums the gradient of its
    input in ``slices`` slices, on ``lane``.
    """
    embedding, head = model.get_submodule(family.embedding), model.get_submodule("lm_head")
    tied = head.weight is embedding.weight
    _shard_rows(embedding, mesh)
    if tied:
        replace_at(head, "weight", embedding.weight)
    else:
        _shard_rows(head, mesh)
    group = mesh.get_group()
    start = _rows(embedding.weight, mesh).start  # type: ignore[arg-type]
    embedding.forward = MethodType(_embedding(start, group, summed), embedding)
    head.forward = MethodType(_head(mesh, slices, lane), head)
    for path in family.replicated:
        _replicate(model.get_submodule(path), mesh)
    unsharded: Any = model
    unsharded.loss_function = _loss(unsharded.loss_function, start, group)


def _rows(weight: Tensor, mesh: DeviceMesh) -> range:
    """Return this rank's rows of a table, which torch cuts into equal parts except for the last."""
    each = -(-weight.shape[0] // mesh.size())
    first = min(weight.shape[0], mesh.get_local_rank() * each)
    return range(first, min(weight.shape[0], first + each))


def _shard_rows(module: nn.Module, mesh: DeviceMesh) -> None:
    old: nn.Parameter = module.weight  # type: ignore[assignment]
    rows = _rows(old, mesh)
    local = old.detach()[rows.start : rows.stop].clone()
    whole = distributed(local, mesh, (Shard(0),), old)
    replace_at(module, "weight", nn.Parameter(whole, requires_grad=old.requires_grad))


def _replicate(module: nn.Module, mesh: DeviceMesh) -> None:
    """Make the module's parameters DTensors, and let it compute with this rank's copies."""
    names = [name for name, _ in module.named_parameters(recurse=False)]
    for name in names:
        old = module.get_parameter(name)
        whole = distributed(old.detach(), mesh, (Replicate(),), old)
        replace_at(module, name, nn.Parameter(whole, requires_grad=old.requires_grad))
    kept: dict[str, nn.Parameter | None] = {}

    def enter(entered: nn.Module, _: Any) -> None:
        for name in names:
            kept[name] = entered._parameters[name]
            entered._parameters[name] = local_part(entered.get_parameter(name))  # type: ignore[assignment]

    def leave(left: nn.Module, _: Any, __: Any) -> None:
        left._parameters.update(kept)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


def local_part(parameter: Tensor) -> Tensor:
    """Return this rank's part of a DTensor; its gradients become the DTensor's. Raise InputError if
    something else has replaced the DTensor since apply."""
    if not isinstance(parameter, DTensor):
        raise InputError(
            "A parameter outside of the layers was changed behind apply: it is whole now, and was "
            "cut over the tensor-parallel ranks. Change the model first (or call it without "
            "functional_call), and apply the plan last."
        )
    return parameter.to_local()


def _check_same_batch(ids: Tensor, group: dist.ProcessGroup) -> None:
    """Raise InputError on all tensor-parallel ranks if they got different tokens."""
    weights = torch.arange(1, ids.numel() + 1, device=ids.device)
    mine = torch.stack((weights.sum(), (ids.reshape(-1) * weights).sum()))
    all_ranks = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(all_ranks, mine, group=group)
    if any(not torch.equal(one, mine) for one in all_ranks):
        raise InputError(
            "Tensor-parallel ranks got different batches. All ranks of a replica need the same: "
            f"let a sampler count replicas, num_replicas=world_size // {group.size()} and "
            f"rank=rank // {group.size()}, and not ranks."
        )


def _own(ids: Tensor, start: int, rows: int, vocab: int) -> tuple[Tensor, Tensor]:
    """Return the rows of this rank's part of the vocabulary, 0 for those of others, and which are
    its own. Ids outside of the vocabulary stay outside, where torch refuses them."""
    local = ids - start
    mine = (local >= 0) & (local < rows)
    outside = (ids < 0) | (ids >= vocab)
    return torch.where(mine, local, torch.where(outside, vocab, 0)), mine


def _embedding(
    start: int, group: dist.ProcessGroup, summed: Summed
) -> Callable[[Any, Tensor], Tensor]:
    calls = 0

    @eager
    def forward(module: nn.Embedding, ids: Tensor) -> Tensor:
        nonlocal calls
        if calls % CHECKED_EVERY == 0 and not captures(ids):
            _check_same_batch(ids, group)
        calls += 1
        weight = local_part(module.weight)
        local, mine = _own(ids, start, len(weight), module.weight.shape[0])
        padding = module.padding_idx
        if padding is not None:
            padding = padding - start if 0 <= padding - start < len(weight) else None
        found = F.embedding(local, weight, padding)
        partial = found * mine[..., None]
        return summed(partial) if partial.dim() == 3 else summed_at_once(partial, group)

    return forward


class _Head(torch.autograd.Function):
    """x·Wᵀ with rows of W on this rank. Backward sums x's gradient over the ranks, slice by slice:
    while that of the next slice, and W's, are computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, slices: int, lane: Lane) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.slices, ctx.lane = slices, lane
        return F.linear(x, weight)

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        dy = gradients[0].flatten(0, -2)
        dx = torch.empty_like(x)
        pairs = zip(dy.chunk(ctx.slices), dx.flatten(0, -2).chunk(ctx.slices), strict=True)
        handles = [
            ctx.lane.issue("head", all_reduce(torch.mm(part, weight, out=into)))
            for part, into in pairs
        ]
        dweight = dy.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        for handle in handles:
            handle.wait()
        return dx, dweight, None, None


def _head(mesh: DeviceMesh, slices: int, lane: Lane) -> Callable[[Any, Tensor], Tensor]:
    @eager
    def forward(module: nn.Linear, x: Tensor) -> Tensor:
        weight = local_part(module.weight)
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
        local: Tensor = _Head.apply(x.contiguous(), weight, slices, lane)  # type: ignore[no-untyped-call]
        shape = torch.Size((*x.shape[:-1], module.weight.shape[0]))
        stride = torch.empty(shape, device="meta").stride()
        logits = DTensor.from_local(
            local, mesh, (Shard(x.dim() - 1),), run_check=False, shape=shape, stride=stride
        )
        return cut_logits(logits) if torch.is_grad_enabled() else logits.full_tensor()

    return forward


class _CrossEntropy(torch.autograd.Function):
    """Each token's cross-entropy, of logits that ranks hold in parts; 0 for ignored tokens."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, start: int, vocab: int, ignored: int,
        group: dist.ProcessGroup,
    ) -> Tensor:  # fmt: skip
        terms = wide(logits)
        top = terms.amax(dim=1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        shifted = terms - top[:, None]
        counts = targets != ignored
        local, mine = _own(torch.where(counts, targets, 0), start, shifted.shape[1], vocab)
        mine &= counts
        found = shifted.gather(1, local[:, None])[:, 0] * mine
        exponentials = shifted.exp_()
        sums = torch.stack((exponentials.sum(dim=1), found))
        dist.all_reduce(sums, group=group)
        ctx.save_for_backward(exponentials.div_(sums[0][:, None]), local, mine, counts)
        ctx.dtype = logits.dtype
        losses: Tensor = sums[0].log() - sums[1]
        return losses * counts

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        shares, local, mine, counts = ctx.saved_tensors
        gradient = shares.scatter_add(1, local[:, None], -mine[:, None].to(shares.dtype))
        # Where no label counts, gradients are 1 / 0, and theirs are 0.
        gradient *= torch.where(counts, gradients[0], 0)[:, None]
        return gradient.to(ctx.dtype), None, None, None, None, None


def _loss(
    whole_loss: Callable[..., Tensor], start: int, group: dist.ProcessGroup
) -> Callable[..., Tensor]:
    """Return the model's loss (``transformers``' ForCausalLMLoss) of whole or of cut logits."""

    @eager
    def loss(
        logits: Tensor, labels: Tensor | None, vocab_size: int, *,
        num_items_in_batch: Tensor | int | None = None, ignore_index: int = -100,
        shift_labels: Tensor | None = None, **other: Any,
    ) -> Tensor:  # fmt: skip
        if not isinstance(logits, DTensor):
            return whole_loss(
                logits=logits, labels=labels, vocab_size=vocab_size,
                num_items_in_batch=num_items_in_batch, ignore_index=ignore_index,
                shift_labels=shift_labels, **other,
            )  # fmt: skip
        if shift_labels is None:
            assert labels is not None
            shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        targets = shift_labels.reshape(-1).to(logits.device)
        local = logits.to_local()
        losses: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
            local.reshape(-1, local.shape[-1]), targets, start, logits.shape[-1], ignore_index,
            group,
        )  # fmt: skip
        counted = (targets != ignore_index).sum()
        items = counted if num_items_in_batch is None else num_items_in_batch
        if isinstance(items, Tensor):
            items = items.to(losses.device)
        return losses.sum() / items

    return loss
