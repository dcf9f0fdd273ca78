"""Call: one collective on tensors, and how a process group performs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist

Operation = Literal["sum", "max", "mean", "gather", "scatter"]


class Call(NamedTuple):
    """A collective that writes ``target``.

    ``sum``, ``max`` and ``mean`` reduce it in place, and ``source`` is the same tensor. ``gather``
    writes the ``source`` of all ranks, one after the other; ``scatter`` this rank's part of their
    sum.
    """

    operation: Operation
    source: torch.Tensor
    target: torch.Tensor

    @property
    def size_bytes(self) -> int:
        """Bytes of the full tensor (nccl-tests' "size")."""
        return max(self.source.nbytes, self.target.nbytes)


def all_reduce(tensor: torch.Tensor, operation: Operation = "sum") -> Call:
    """Return the reduction of ``tensor`` in place."""
    return Call(operation, tensor, tensor)


def mean(tensor: torch.Tensor) -> Call:
    """Return the mean of ``tensor`` over the ranks, in place."""
    return Call("mean", tensor, tensor)


def all_gather(source: torch.Tensor, ranks: int, into: torch.Tensor | None = None) -> Call:
    """Return the gather of [n, …] tensors ``into`` one of [n · ranks, …], or a new one."""
    if into is None:
        into = source.new_empty((source.shape[0] * ranks, *source.shape[1:]))
    return Call("gather", source, into)


def reduce_scatter(source: torch.Tensor, ranks: int) -> Call:
    """Return the sum of [n, …] tensors, scattered: each rank gets [n / ranks, …], a new tensor."""
    return Call("scatter", source, source.new_empty((source.shape[0] // ranks, *source.shape[1:])))


def perform(call: Call, group: dist.ProcessGroup) -> None:
    """Run ``call`` on ``group``, on NCCL asynchronously on the current stream.

    gloo has no reduce-scatter of its own: torch's takes as long as an all-reduce or longer. Ranks
    that exchange their parts and add them up send half as much.
    """
    if call.operation == "gather":
        _gather(call, group)
    elif call.operation == "scatter":
        _scatter(call, group)
    elif call.operation == "mean":
        _mean(call, group)
    else:
        reduction = dist.ReduceOp.MAX if call.operation == "max" else dist.ReduceOp.SUM
        dist.all_reduce(call.target, op=reduction, group=group)


def _mean(call: Call, group: dist.ProcessGroup) -> None:
    """Divide, then add: fp16 would overflow. NCCL does both in one kernel; gloo has no mean."""
    if call.target.is_cuda:
        dist.all_reduce(call.target, op=dist.ReduceOp.AVG, group=group)
    else:
        dist.all_reduce(call.target.div_(group.size()), group=group)


def _gather(call: Call, group: dist.ProcessGroup) -> None:
    if call.target.is_cuda:
        into_one(call, group)
    else:
        _exchange(call.target.chunk(group.size()), [call.source] * group.size(), group)


def _scatter(call: Call, group: dist.ProcessGroup) -> None:
    if call.target.is_cuda:
        into_one(call, group)
        return
    sent = call.source.chunk(group.size())
    parts = call.target.new_empty((group.size(), *call.target.shape))
    _exchange(parts.unbind(), sent, group)
    torch.sum(parts, 0, out=call.target)


def into_one(call: Call, group: dist.ProcessGroup) -> None:
    """Gather into, or scatter from, one tensor of all ranks' parts. NCCL would flatten lists of
    them, with one more buffer and copy each, and a capture would end in copies."""
    if call.operation == "gather":
        dist.all_gather_into_tensor(call.target, call.source, group=group)
    else:
        dist.reduce_scatter_tensor(call.target, call.source, group=group)


def _exchange(
    received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor], group: dist.ProcessGroup
) -> None:
    """Send a tensor to each rank of a gloo group and receive one from each.

    Receive first: a gloo receive sends the peer a permission to send, which queues after data that
    is already on its way to that peer. gloo's own gather and all-to-all send first. So if one rank
    is later than the other, their data moves in one direction at a time and takes twice as long.
    """
    peers = [rank for rank in range(group.size()) if rank != group.rank()]
    works = [group.recv([received[peer]], peer, 0) for peer in peers]
    works += [group.send([sent[peer]], peer, 0) for peer in peers]
    received[group.rank()].copy_(sent[group.rank()])
    for work in works:
        work.wait()


def pretend(call: Call) -> None:
    """Fill ``target`` as if all ranks had this one's ``source``; do nothing for in-place calls.

    Ops after a collective that does not run then read ordinary numbers.
    """
    if call.operation == "gather":
        for part in call.target.chunk(len(call.target) // len(call.source)):
            part.copy_(call.source)
    elif call.operation == "scatter":
        call.target.copy_(call.source[: call.target.shape[0]])
