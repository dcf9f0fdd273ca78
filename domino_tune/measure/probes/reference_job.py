"""The runtime's layers held against plain torch, in turn: by all ranks, or by one alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F

from domino_tune.base.errors import RunError
from domino_tune.runtime.clock import DeviceClock, HostClock, Tick, was_late
from domino_tune.runtime.head_start import HeadStart
from domino_tune.runtime.lanes.lane import Lane, ThreadLane
from domino_tune.runtime.lanes.silent import silent_lanes
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.ops.dropout import keep_mask
from domino_tune.runtime.ops.pointwise import pointwise_for
from domino_tune.runtime.plain_torch.model import PlainModel, no_dropout
from domino_tune.runtime.session import Session
from simulator.build import build_schedule
from simulator.plan import MEGATRON
from simulator.schedule import COMPUTE, TP, Op
from simulator.schedules import fixed_order

WARM_UP: Final = 2
HEAD_START_NS: Final = 40_000_000
"""What the device waits for the host, whose launches of all layers its queue holds."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What the stack of layers took, forward and backward, ns: the runtime's, plain ones with the
    same kernels, and plain ones in torch's own operators."""

    ours_ns: int
    plain_ns: int
    torch_ns: int


def compare(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Rank 0 reports, for each round, what the stack of layers took forward and backward: in the
    runtime's megatron schedule, and written with autograd and dist.all_reduce. The slowest rank's.
    """
    session = Session.of(context, payload)
    lane = context.lanes[TP]
    assert isinstance(lane, ThreadLane)
    ours, theirs = _Ours(session, context.lanes), _Plain(session, lane.group)
    for step in range(WARM_UP + int(payload["rounds"])):
        context.barrier()
        ours_ns = ours.step()
        context.barrier()
        both = context.all_gather_objects((ours_ns, theirs.step()))
        if step >= WARM_UP:
            ours_ns, theirs_ns = (max(times) for times in zip(*both, strict=True))
            context.report({"kind": "round", "ours_ns": ours_ns, "theirs_ns": theirs_ns})


def rounds_alone(session: Session, rounds: int) -> list[Round]:
    """The same on one rank's shard, without communication; on a GPU of rounds that the host was
    ahead in, at most twice as many being played.

    Raises RunError where there were too few of them.
    """
    # On a GPU too: collectives that nobody waits for need no events.
    silent = silent_lanes(torch.device("cpu"))
    players = (_Ours(session, silent), _Plain(session, None, fused=True), _Plain(session, None))
    found = []
    for step in range(WARM_UP + 2 * rounds):
        times = [player.step() for player in players]
        session.context.beat()
        if step >= WARM_UP and not any(was_late(player.clock) for player in players):
            found.append(Round(ours_ns=times[0], plain_ns=times[1], torch_ns=times[2]))
        if len(found) == rounds:
            return found
    raise RunError(
        f"Only {len(found)} of {2 * rounds} rounds were launched in time, {rounds} are needed: is "
        "the host busy with something else?"
    )


class _Ours:
    """The runtime's schedule; on a GPU with events at the ends of the layers alone."""

    def __init__(self, session: Session, lanes: Mapping[int, Lane]) -> None:
        self.session = session
        order = fixed_order(MEGATRON)
        schedule = build_schedule(
            session.model, session.workload, session.cluster, MEGATRON, order
        )  # fmt: skip
        self.ends = layer_ends(list(schedule.ops()))
        on_device = session.context.device.type == "cuda"
        self.clock = MarkClock(self.ends) if on_device else HostClock()
        self.executor = session.executor(MEGATRON, order, lanes, self.clock)

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


def layer_ends(ops: Sequence[Op]) -> Ends:
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


class MarkClock(DeviceClock):
    """Records the events that ``ends`` needs: others would cost the device time. The host is
    ahead, as it is of the plain layers: kernels are compared, not launches."""

    def __init__(self, ends: Ends) -> None:
        super().__init__(HeadStart(HEAD_START_NS))
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
    """The plain layers on this rank's shards. Alone, with the runtime's GEMMs, whose weight
    gradients are in fp32; ``fused``: with its pointwise kernels, too."""

    def __init__(
        self, session: Session, group: dist.ProcessGroup | None, *, fused: bool = False
    ) -> None:
        self.session = session
        self.model = _plain_model(session, group, fused=fused)
        shape = (session.workload.tokens, session.model.hidden_size)
        like = session.parameters.weights["w.embed"]
        self.x = torch.randn(shape, dtype=like.dtype, device=like.device).requires_grad_()
        self.dy = torch.randn(shape, dtype=like.dtype, device=like.device)
        on_device = like.device.type == "cuda"
        self.clock = DeviceClock(HeadStart(HEAD_START_NS)) if on_device else HostClock()

    def step(self) -> int:
        """Forward and backward once, in ns."""
        for tensor in (self.x, *self.model.weights.values()):
            tensor.grad = None
        self.clock.start()
        start = self.clock.tick()
        y = self.model.layers(self.x, self.session.workload.seq_length)
        torch.autograd.backward(y, self.dy)
        end = self.clock.tick()
        self.clock.stop()
        return self.clock.at_ns(end) - self.clock.at_ns(start)


def _plain_model(
    session: Session, group: dist.ProcessGroup | None, *, fused: bool
) -> PlainModel:  # fmt: skip
    parameters, model, work = session.parameters, session.model, session.workload
    device, rate = session.context.device, model.hidden_dropout
    main_grads = None
    if group is None:
        main_grads = {name: torch.zeros_like(grad) for name, grad in parameters.grads.items()}

    def mask(site: str) -> torch.Tensor:
        return keep_mask(
            range(work.micro_batch_size), (work.seq_length, model.hidden_size), rate,
            seed=session.training.seed, step=parameters.steps, site=site, device=device,
        )  # fmt: skip

    return PlainModel(
        model=model,
        weights={name: tensor.clone().requires_grad_()
                 for name, tensor in parameters.weights.items()},
        group=group, tp=session.cluster.tp, main_grads=main_grads,
        dropout=(lambda x, site: F.dropout(x, rate)) if rate else no_dropout,
        pointwise=pointwise_for(device) if fused else None,
        mask=mask if fused and rate else None,
    )  # fmt: skip
