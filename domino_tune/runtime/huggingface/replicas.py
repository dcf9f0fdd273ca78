"""Data parallelism of a model that plays a plan: gradients are averaged while backward goes on.

DDP and FSDP hear of gradients from autograd, to which a stack is one function: it gives those of
all layers at once. So their means begin within it, bucket by bucket, as the simulator prices them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from domino_tune.runtime.huggingface.copies import NotCopied
from domino_tune.runtime.huggingface.shard import ShardedStack, local
from domino_tune.runtime.lanes.call import mean
from domino_tune.runtime.lanes.lane import Handle, Lane

Tensor = torch.Tensor


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
            self.wait()  # for what a pass that failed has left
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
