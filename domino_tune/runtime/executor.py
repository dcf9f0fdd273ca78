"""Plays a Schedule on this rank, op by op in issue order.

This is what the simulator's engines predict: compute ops run in issue order, a collective is
handed to its lane at its place in that order, and the first reader of its result waits for it.
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
from simulator.issue_order import BLOCKS, COLUMN_PARALLEL, ROW_PARALLEL
from simulator.schedule import COMPUTE, Op, Schedule, is_weight
from simulator.shapes import GRAD_BYTES
from simulator.specs import Workload
from simulator.timeline import Timeline

OpFunction = Callable[[State, Op], None]

_BLOCK_FUNCTIONS: Final[dict[str, OpFunction]] = {
    "norm": layers.norm,
    "residual": layers.residual,
    "residual_bwd": layers.residual_bwd,
    "norm_bwd": layers.norm_bwd,
}
FUNCTIONS: Final[dict[str, OpFunction]] = {
    **{f"{b}.{name}": f for b in BLOCKS for name, f in _BLOCK_FUNCTIONS.items()},
    **{f"{b}.{COLUMN_PARALLEL[b]}": layers.column_parallel for b in BLOCKS},
    **{f"{b}.{COLUMN_PARALLEL[b]}_dgrad": layers.column_parallel_dgrad for b in BLOCKS},
    **{f"{b}.{COLUMN_PARALLEL[b]}_wgrad": layers.wgrad for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}": layers.row_parallel for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}_dgrad": layers.row_parallel_dgrad for b in BLOCKS},
    **{f"{b}.{ROW_PARALLEL[b]}_wgrad": layers.wgrad for b in BLOCKS},
    "attn.rope": attention.rope,
    "attn.core_attn": attention.core_attn,
    "attn.core_attn_bwd": attention.core_attn_bwd,
    "attn.rope_bwd": attention.rope_bwd,
    "mlp.act": layers.act,
    "mlp.act_bwd": layers.act_bwd,
    "embed": edges.embed,
    "embed.post": edges.embed_post,
    "embed_bwd": edges.embed_bwd,
    "head.norm": layers.norm,
    "head.norm_bwd": layers.norm_bwd,
    "head.logits": edges.logits,
    "head.logits_dgrad": edges.logits_dgrad,
    "head.logits_wgrad": edges.logits_wgrad,
    "loss.max": edges.loss_max,
    "loss.sum": edges.loss_sum,
    "loss.grad": edges.loss_grad,
    "step.grad_norm": edges.grad_norm,
    "step.adam": edges.adam,
}
"""Tensor function of every compute role."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One step of this rank: this replica's share of the global loss, and when each op ran."""

    loss: float
    grad_norm: float
    timeline: Timeline
    launched: tuple[str, ...]


class Executor:
    """Plays ``schedule`` any number of times. ``lanes`` maps comm lane numbers to lanes; ``clock``
    times the ops (default: the most exact one that the device has)."""

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
        """Run one optimizer step on this replica's tokens and targets, [sequences, seq_length].

        Raise InputError where their shape is not that of the workload's batch.
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
        """Return this replica's share of the loss of the last step."""
        return torch.stack(self.state.losses).sum()

    @torch.no_grad()
    def play(
        self, tokens: torch.Tensor, targets: torch.Tensor, clock: Clock
    ) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
        """Issue every op of a step. Return (start, end) of each by ``clock``, and the issued names.

        Raise InputError where tokens and targets do not have the shape of the workload's batch.
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
        """Return the tensor that a collective reduces: a value, or a range of main gradients."""
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
    """Return, for each op, the values to free after it: those that no later op reads."""
    last: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in (*op.reads, *op.writes):
            last[name] = index
    frees: list[list[str]] = [[] for _ in ops]
    for name, index in last.items():
        if not is_weight(name):
            frees[index].append(name)
    return frees
