"""The runtime's layers compared with plain torch, alternately: on all ranks, or on a single one."""

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
"""The device's wait for the host: its queue holds the launches of all layers."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """Time of all layers, forward and backward, ns: the runtime's, plain ones with the same
    kernels, and plain ones with torch's own operators."""

    ours_ns: int
    plain_ns: int
    torch_ns: int


def compare(context: RankContext, payload: Mapping[str, Any]) -> None:
    """Report, for each round, the time of all layers, forward and backward, on the slowest rank: in
    the runtime's megatron schedule, and with autograd and dist.all_reduce.
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
    """Return the same times on one rank's shard, without communication.

    On a GPU only rounds in which the host was ahead count; at most twice as many are played. Raise
    RunError where too few count.
    """
    # On a GPU too: collectives that no op waits for need no events.
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
    """The runtime's schedule; on a GPU with events at the ends of the layers only."""

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
        """Return the time from the first to the last op of the layers, forward plus backward, ns:
        the head is between them."""
        timeline = self.executor.run_step(*self.session.batch).timeline
        spans = [
            (start, end)
            for op, start, end in zip(timeline.ops, timeline.start_ns, timeline.end_ns, strict=True)
            if op.lane == COMPUTE
        ]
        return sum(spans[last][1] - spans[first][0] for first, last in self.ends)


Ends = tuple[tuple[int, int], tuple[int, int]]


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


class MarkClock(DeviceClock):
    """Records only the events that ``ends`` needs: others would cost device time. The host is
    ahead, as with the plain layers: this compares kernels, not launches."""

    def __init__(self, ends: Ends) -> None:
        super().__init__(HeadStart(HEAD_START_NS))
        self.needed_ticks = {tick for first, last in ends for tick in (2 * first, 2 * last + 1)}
        self.tick_count = 0

    def start(self) -> None:
        """Begin a step on an idle device."""
        super().start()
        self.tick_count = 0

    def tick(self) -> Tick:
        """Return an event after all work issued to the compute stream if it is needed, else 0."""
        self.tick_count += 1
        return super().tick() if self.tick_count - 1 in self.needed_ticks else 0

    def at_ns(self, tick: Tick) -> int:
        """Return the ns from the start of the step to ``tick``; 0 where it was not recorded."""
        return 0 if isinstance(tick, int) else super().at_ns(tick)


class _Plain:
    """The plain layers on this rank's shards. Without a group they use the runtime's GEMMs, whose
    weight gradients are fp32; ``fused``: its pointwise kernels, too."""

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
        """Play forward and backward once; return the time, ns."""
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
