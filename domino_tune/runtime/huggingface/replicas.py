"""Data parallelism of a model that plays a plan: gradients are averaged after backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from domino_tune.runtime.huggingface.copies import NotCopied

BUCKET_BYTES: Final = 64 << 20


class Replicas(NotCopied):
    """Averages the gradients of ``model`` over ``group`` when a backward pass has ended, as DDP
    does; within ``no_sync``, which DDP and FSDP have too, they only add up."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.model = model
        self.group = group
        self.synchronises = True
        self._in_ddp = False
        self._backward = -1
        model.register_forward_pre_hook(self._notice_ddp)
        for parameter in model.parameters() if group.size() > 1 else ():
            trained = parameter.requires_grad
            parameter.requires_grad_(True)  # torch hooks no others; this one may be trained later
            parameter.register_post_accumulate_grad_hook(self._in_backward)  # type: ignore[no-untyped-call]
            parameter.requires_grad_(trained)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients as they are within this context: for all but the last micro-batch."""
        before, self.synchronises = self.synchronises, False
        try:
            yield
        finally:
            self.synchronises = before

    def _notice_ddp(self, *_: object) -> None:
        """Leave averaging to DDP where a user, or Accelerate, has wrapped the model in it."""
        self._in_ddp = DistributedDataParallel._active_ddp_module is not None

    def _in_backward(self, _: torch.Tensor) -> None:
        """Have the gradients averaged after this backward pass, once."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            torch.autograd.Variable._execution_engine.queue_callback(self._behind_backward)

    def _behind_backward(self) -> None:
        """Average all gradients, unless within ``no_sync``. Divide first: sums overflow in fp16."""
        if not self.synchronises or self._in_ddp:
            return
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        sent = []  # one bucket is packed while those before it are under way
        for bucket in _buckets([g.to_local() if isinstance(g, DTensor) else g for g in grads]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            flat /= self.group.size()
            sent.append((bucket, flat, dist.all_reduce(flat, group=self.group, async_op=True)))
        for bucket, flat, work in sent:
            work.wait()
            parts = torch.split(flat, [gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))


def _buckets(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield the gradients in groups of one dtype and about BUCKET_BYTES."""
    bucket: list[torch.Tensor] = []
    held = 0
    for gradient in gradients:
        if bucket and (held >= BUCKET_BYTES or bucket[0].dtype != gradient.dtype):
            yield bucket
            bucket, held = [], 0
        bucket.append(gradient)
        held += gradient.nbytes
    if bucket:
        yield bucket
