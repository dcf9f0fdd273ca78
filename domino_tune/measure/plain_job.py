"""The runtime's layers held against plain torch, in turn: by all ranks, or by one alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F

from domino_tune.runtime.clock import DeviceClock, HostClock, Tick
from domino_tune.runtime.context import RankContext
from domino_tune.runtime.lanes import ThreadLane
from domino_tune.runtime.plain import PlainModel, no_dropout
from domino_tune.runtime.session import Session
from simulator.build import build_schedule
from simulator.plan import MEGATRON
from simulator.schedule import COMPUTE, TP, Op
from simulator.schedules import fixed_order

WARM_UP: Final = 2


@dataclass(frozen=True, kw_only=True)
class Round:
    """What the stack of layers took, forward and backward, ns."""

    ours_ns: int
    theirs_ns: int


def compare(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Rank 0 reports, for each round, what the stack of layers took forward and backward: in the
    runtime's megatron schedule, and written with autograd and dist.all_reduce. The slowest rank's.
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


def rounds_alone(session: Session, rounds: int) -> list[Round]:
    """The same on one rank's shard, without communication."""
    ours, theirs = _Ours(session), _Plain(session, None)
    found = []
    for _ in range(WARM_UP + rounds):
        found.append(Round(ours_ns=ours.step(), theirs_ns=theirs.step()))
        session.context.beat()
    return found[WARM_UP:]


class _Ours:
    """The runtime's schedule; on a GPU with events at the ends of the layers alone."""

    def __init__(self, session: Session) -> None:
        self.session = session
        order = fixed_order(MEGATRON)
        schedule = build_schedule(
            session.model, session.workload, session.cluster, MEGATRON, order
        )  # fmt: skip
        self.ends = _ends(list(schedule.ops()))
        on_device = session.context.device.type == "cuda"
        clock = _MarkClock(self.ends) if on_device else HostClock()
        self.executor = session.executor(MEGATRON, order, clock=clock)

    def step(self) -> int:
        """From the first op of a layer to the last, forward and backward apart: the head stands
        between them."""
        timeline = self.executor.run_step(*self.session.batch).timeline
        spans = [
            (start, end)
            for op, start, end in zip(timeline.ops, timeline.start_ns, timeline.end_ns, strict=True)
            if op.lane == COMPUTE
        ]
        return sum(spans[last][1] - spans[first][0] for first, last in self.ends)


Ends = tuple[tuple[int, int], tuple[int, int]]


def _ends(ops: Sequence[Op]) -> Ends:
    """First and last op of the layers, forward and backward, among the compute ops."""
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
    return role.endswith("'") or "grad" in role


class _MarkClock(DeviceClock):
    """Records the events that ``ends`` needs: others would cost the device time."""

    def __init__(self, ends: Ends) -> None:
        super().__init__()
        self.wanted = {tick for first, last in ends for tick in (2 * first, 2 * last + 1)}
        self.asked = 0

    def start(self) -> None:
        """The step begins, on an idle device."""
        super().start()
        self.asked = 0

    def tick(self) -> Tick:
        """Behind everything that the compute stream was given so far, if it is wanted."""
        self.asked += 1
        return super().tick() if self.asked - 1 in self.wanted else 0

    def at_ns(self, tick: Tick) -> int:
        """Nanoseconds since the step began; 0 of what was not wanted."""
        return 0 if isinstance(tick, int) else super().at_ns(tick)


class _Plain:
    """The plain layers on this rank's shards. Alone, with the runtime's GEMMs: its weight
    gradients, too, are added up in fp32."""

    def __init__(self, session: Session, group: dist.ProcessGroup | None) -> None:
        parameters, self.seq_length = session.parameters, session.workload.seq_length
        self.weights = {
            name: tensor.clone().requires_grad_() for name, tensor in parameters.weights.items()
        }
        main_grads = None
        if group is None:
            main_grads = {name: torch.zeros_like(g) for name, g in parameters.grads.items()}
        rate = session.model.hidden_dropout
        self.model = PlainModel(
            model=session.model, weights=self.weights, group=group, tp=session.cluster.tp,
            main_grads=main_grads,
            dropout=(lambda x, site: F.dropout(x, rate)) if rate else no_dropout,
        )  # fmt: skip
        shape = (session.workload.tokens, session.model.hidden_size)
        like = parameters.weights["w.embed"]
        self.x = torch.randn(shape, dtype=like.dtype, device=like.device).requires_grad_()
        self.dy = torch.randn(shape, dtype=like.dtype, device=like.device)

    def step(self) -> int:
        """Forward and backward once, in ns."""
        for tensor in (self.x, *self.weights.values()):
            tensor.grad = None
        if self.x.device.type != "cuda":
            start = time.perf_counter_ns()
            self._play()
            return time.perf_counter_ns() - start
        clock = DeviceClock()
        clock.start()
        self._play()
        clock.stop()
        return clock.elapsed_ns

    def _play(self) -> None:
        torch.autograd.backward(self.model.layers(self.x, self.seq_length), self.dy)
