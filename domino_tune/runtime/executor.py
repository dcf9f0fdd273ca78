"""Plays a Schedule on this rank: op by op in issue order, waiting where a result is first read.

What the simulator's engines predict is what happens here: compute ops run as they stand, a
collective is handed to its lane where it stands, and the first reader of its result waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from domino_tune.runtime.clock import Clock, Tick, clock_for
from domino_tune.runtime.lanes.lane import Handle, Lane
from domino_tune.runtime.ops import attention, edges, layers
from domino_tune.runtime.ops.state import State
from domino_tune.runtime.parameters import EDGES
from simulator.errors import InputError
from simulator.schedule import COMPUTE, Op, Schedule, is_weight
from simulator.shapes import GRAD_BYTES
from simulator.specs import Workload
from simulator.timeline import Timeline

OpFunction = Callable[[State, Op], None]

_BLOCK_FUNCTIONS: Final[dict[str, OpFunction]] = {
    "norm": layers.norm,
    "a": layers.a_forward,
    "b": layers.b_forward,
    "out": layers.out,
    "out'": layers.out_grad,
    "b_dgrad": layers.b_dgrad,
    "b_wgrad": layers.wgrad,
    "a_dgrad": layers.a_dgrad,
    "a_wgrad": layers.wgrad,
    "norm'": layers.norm_grad,
}
FUNCTIONS: Final[dict[str, OpFunction]] = {
    **{f"{b}.{name}": f for b in ("attn", "mlp") for name, f in _BLOCK_FUNCTIONS.items()},
    "attn.rope": attention.rope,
    "attn.core": attention.attention,
    "attn.core'": attention.attention_grad,
    "attn.rope'": attention.rope_grad,
    "mlp.core": layers.mlp_core,
    "mlp.core'": layers.mlp_core_grad,
    "embed": edges.embed,
    "embed.post": edges.embed_post,
    "embed'": edges.embed_grad,
    "head.norm": layers.norm,
    "head.norm'": layers.norm_grad,
    "head.a": edges.head,
    "head.a_dgrad": edges.head_dgrad,
    "head.a_wgrad": edges.head_wgrad,
    "loss.max": edges.loss_max,
    "loss.sum": edges.loss_sum,
    "loss.grad": edges.loss_grad,
    "step.grad_norm": edges.grad_norm,
    "step.adam": edges.adam,
}
"""The tensor function of every compute role."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One step of this rank: the global loss's share of this replica, and when each op ran."""

    loss: float
    grad_norm: float
    timeline: Timeline
    launched: tuple[str, ...]


class Executor:
    """Plays ``schedule`` again and again. ``lanes`` maps comm lane numbers to lanes; ``clock``
    tells when ops ran (by default, as exactly as the device can)."""

    def __init__(
        self,
        schedule: Schedule,
        state: State,
        lanes: Mapping[int, Lane],
        clock: Clock | None = None,
    ) -> None:
        self.schedule = schedule
        self.state = state
        self.lanes = lanes
        self.ops = tuple(schedule.ops())
        self.frees = _last_reads(self.ops)
        self.clock = clock or clock_for(state.parameters.main.device)

    def run_step(self, tokens: torch.Tensor, targets: torch.Tensor) -> StepResult:
        """One optimizer step on this replica's batch, [sequences, seq_length] each.

        Raises InputError where that is not the workload's batch.
        """
        state = self.state
        spans, launched = self.play(tokens, targets, self.clock)
        state.parameters.steps += 1
        loss, norm = float(self.loss()), float(state.saved["grad_norm"].sqrt())
        timeline = Timeline(
            schedule=self.schedule,
            start_ns=tuple(start for start, _ in spans),
            end_ns=tuple(end for _, end in spans),
        )
        return StepResult(loss=loss, grad_norm=norm, timeline=timeline, launched=launched)

    def loss(self) -> torch.Tensor:
        """The loss of the step just played: this replica's share."""
        return torch.stack(self.state.losses).sum()

    @torch.no_grad()
    def play(
        self, tokens: torch.Tensor, targets: torch.Tensor, clock: Clock
    ) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
        """Issue every op of a step: (start, end) of each by ``clock``, and the names as issued.

        Raises InputError where tokens and targets are not the workload's batch.
        """
        _check_batch(self.state.shapes.workload, tokens, targets)
        self.state.tokens, self.state.targets, self.state.losses = tokens, targets, []
        state, values = self.state, self.state.values
        pending: dict[str, Handle] = {}
        moments: list[Callable[[], tuple[Tick, Tick]]] = []
        launched = []
        clock.start()
        for op, free in zip(self.ops, self.frees, strict=True):
            launched.append(op.name)
            if op.lane == COMPUTE:
                for name in op.reads:
                    if name in pending:
                        pending.pop(name).wait()
                start = clock.tick()
                FUNCTIONS[op.role](state, op)
                moments.append(partial(_pair, start, clock.tick()))
            else:
                handle = self._issue(op)
                pending[op.writes[0]] = handle
                moments.append(handle.ticks)
            for name in free:
                values.pop(name, None)
        for handle in pending.values():
            handle.wait()
        clock.stop()
        ticks = [moment() for moment in moments]
        return [(clock.at_ns(a), clock.at_ns(b)) for a, b in ticks], tuple(launched)

    def _issue(self, op: Op) -> Handle:
        tensor = self._buffer(op)
        self.state.values[op.writes[0]] = tensor
        reduction = "max" if op.role == "loss.max.ar" else "sum"
        return self.lanes[op.lane].issue(op.name, tensor, reduction)

    def _buffer(self, op: Op) -> torch.Tensor:
        """What a collective reduces: the value it reads, or a range of main gradients."""
        parameters, shapes = self.state.parameters, self.state.shapes
        if op.role == "dp.ar":
            count = op.signature.size_bytes // GRAD_BYTES // shapes.layer_parameters  # type: ignore[union-attr]
            return parameters.gradient_range(op.layer, op.layer + count - 1)
        if op.role == "step.dp.ar":
            rest = op.signature.size_bytes // GRAD_BYTES - shapes.edge_parameters  # type: ignore[union-attr]
            return parameters.gradient_range(EDGES, rest // shapes.layer_parameters - 1)
        return self.state.values[op.reads[0]]


def _pair(start: Tick, end: Tick) -> tuple[Tick, Tick]:
    return start, end


def _check_batch(workload: Workload, *tensors: torch.Tensor) -> None:
    expected = (workload.micro_batch_size * workload.grad_accumulation, workload.seq_length)
    for tensor in tensors:
        if tuple(tensor.shape) != expected:
            raise InputError(
                f"A replica's tokens and targets must be {list(expected)} (micro_batch_size × "
                f"grad_accumulation, seq_length), got {list(tensor.shape)}."
            )


def _last_reads(ops: tuple[Op, ...]) -> list[list[str]]:
    """Values to forget behind each op: those that nobody reads any more."""
    last: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in (*op.reads, *op.writes):
            last[name] = index
    frees: list[list[str]] = [[] for _ in ops]
    for name, index in last.items():
        if not is_weight(name):
            frees[index].append(name)
    return frees
