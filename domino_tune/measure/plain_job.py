"""What every rank does to hold the runtime's layers against plain torch: both, in turn."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import torch

from domino_tune.runtime.context import RankContext
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.lanes import ThreadLane
from domino_tune.runtime.plain import PlainModel
from domino_tune.runtime.session import Session
from simulator.plan import MEGATRON
from simulator.schedule import TP
from simulator.schedules import fixed_order
from simulator.timeline import Timeline

WARM_UP: Final = 2


def compare(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Rank 0 reports, for each round, what the stack of layers took forward and backward: in the
    runtime's megatron schedule, and written with autograd and dist.all_reduce. The slowest rank's.
    """
    session = Session.of(context, payload)
    executor = session.executor(MEGATRON, fixed_order(MEGATRON))
    plain = _Plain(session)
    for step in range(WARM_UP + int(payload["rounds"])):
        ours_ns = _ours(session, executor)
        theirs_ns = plain.step()
        both = context.all_gather_objects((ours_ns, theirs_ns))
        if step >= WARM_UP:
            ours, theirs = (max(times) for times in zip(*both, strict=True))
            context.report({"kind": "round", "ours_ns": ours, "theirs_ns": theirs})


def _ours(session: Session, executor: Executor) -> int:
    session.context.barrier()
    return _layers_ns(executor.run_step(*session.batch).timeline)


def _layers_ns(timeline: Timeline) -> int:
    """From the first op of a layer to the last, forward and backward apart: the head stands
    between them."""
    total = 0
    for backward in (False, True):
        spans = [
            (start, end)
            for op, start, end in zip(timeline.ops, timeline.start_ns, timeline.end_ns, strict=True)
            if op.role.startswith(("attn.", "mlp.")) and _is_backward(op.role) == backward
        ]
        total += max(end for _, end in spans) - min(start for start, _ in spans)
    return total


def _is_backward(role: str) -> bool:
    name = role.removesuffix(".ar")
    return name.endswith("'") or "grad" in name


class _Plain:
    """The plain layers on this rank's shards."""

    def __init__(self, session: Session) -> None:
        lane = session.context.lanes[TP]
        assert isinstance(lane, ThreadLane)
        self.context = session.context
        self.seq_length = session.workload.seq_length
        self.weights = {
            name: tensor.clone().requires_grad_()
            for name, tensor in session.parameters.weights.items()
        }
        self.model = PlainModel(model=session.model, weights=self.weights, group=lane.group)
        shape = (session.workload.tokens, session.model.hidden_size)
        self.x = torch.randn(shape).requires_grad_()
        self.dy = torch.randn(shape)

    def step(self) -> int:
        """Forward and backward once, in ns."""
        for tensor in (self.x, *self.weights.values()):
            tensor.grad = None
        self.context.barrier()
        start = time.perf_counter_ns()
        torch.autograd.backward(self.model.layers(self.x, self.seq_length), self.dy)
        return time.perf_counter_ns() - start
