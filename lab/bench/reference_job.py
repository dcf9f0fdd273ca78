"""The runtime's megatron schedule beside the same layers in plain torch, in turn, on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F

from domino_tune.runtime.clock import HostClock
from domino_tune.runtime.lanes.lane import ThreadLane
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.plain_torch.model import PlainModel, no_dropout
from domino_tune.runtime.session import Session
from simulator.plan import MEGATRON
from simulator.schedule import COMPUTE, TP, Op

WARM_UP: Final = 2
Ends = tuple[tuple[int, int], tuple[int, int]]


def compare(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Report, for each round, the time of all layers, forward and backward, on the slowest rank: in
    the runtime's megatron schedule, and with autograd and dist.all_reduce.
    """
    session = Session.of(context, payload)
    lane = context.lanes[TP]
    assert isinstance(lane, ThreadLane)
    ours, theirs = _Ours(session), _Plain(session, lane.group)
    for step in range(WARM_UP + int(payload["rounds"])):
        context.barrier()
        ours_ns = ours.step()
        context.barrier()
        both = context.all_gather_objects((ours_ns, theirs.step()))
        if step >= WARM_UP:
            ours_ns, theirs_ns = (max(times) for times in zip(*both, strict=True))
            context.report({"kind": "round", "ours_ns": ours_ns, "theirs_ns": theirs_ns})


class _Ours:
    """The runtime's schedule, timed by the host's clock."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.executor = session.executor(MEGATRON, None)
        self.ends = layer_ends(self.executor.ops)

    def step(self) -> int:
        """Return the time from the first to the last op of the layers, forward plus backward, ns:
        the head is between them."""
        timeline = self.executor.run_step(*self.session.batch).timeline
        spans = [(start, end) for _, start, end in timeline.lane(COMPUTE)]
        return sum(spans[last][1] - spans[first][0] for first, last in self.ends)


def layer_ends(ops: Sequence[Op]) -> Ends:
    """Return first and last op of the layers, forward and backward, among the compute ops."""
    computing = [op for op in ops if op.lane == COMPUTE]
    forward, backward = (
        [
            index
            for index, op in enumerate(computing)
            if op.role.startswith(("attn.", "mlp.")) and _is_backward(op.role) == is_backward
        ]
        for is_backward in (False, True)
    )
    return (forward[0], forward[-1]), (backward[0], backward[-1])


def _is_backward(role: str) -> bool:
    return role.endswith(("_bwd", "_dgrad", "_wgrad"))


class _Plain:
    """The plain layers on this rank's shards."""

    def __init__(self, session: Session, group: dist.ProcessGroup) -> None:
        self.session = session
        model, weights = session.model, session.parameters.weights
        rate, like = model.hidden_dropout, weights["w.embed"]
        self.model = PlainModel(
            model=model,
            weights={name: one.clone().requires_grad_() for name, one in weights.items()},
            group=group,
            dropout=(lambda x, site: F.dropout(x, rate)) if rate else no_dropout,
        )
        shape = (session.workload.tokens, model.hidden_size)
        self.x, self.dy = (torch.randn(shape, dtype=like.dtype) for _ in range(2))
        self.x.requires_grad_()

    def step(self) -> int:
        """Play forward and backward once; return the time, ns."""
        for tensor in (self.x, *self.model.weights.values()):
            tensor.grad = None
        clock = HostClock()
        clock.start()
        start = clock.tick()
        y = self.model.layers(self.x, self.session.workload.seq_length)
        torch.autograd.backward(y, self.dy)
        end = clock.tick()
        return clock.at_ns(end) - clock.at_ns(start)
