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

from domino_tune.runtime import attention_functions, edge_functions, layer_functions
from domino_tune.runtime.clock import Clock, Tick, clock_for
from domino_tune.runtime.lanes import Handle, Lane
from domino_tune.runtime.parameters import EDGES
from domino_tune.runtime.state import State
from simulator.errors import InputError
from simulator.schedule import COMPUTE, Op, Schedule, is_weight
from simulator.shapes import GRAD_BYTES
from simulator.specs import Workload
from simulator.timeline import Timeline

OpFunction = Callable[[State, Op], None]

_BLOCK_FUNCTIONS: Final[dict[str, OpFunction]] = {
    "norm": layer_functions.norm,
    "a": layer_functions.a_forward,
    "b": layer_functions.b_forward,
    "out": layer_functions.out,
    "out'": layer_functions.out_grad,
    "b_dgrad": layer_functions.b_dgrad,
    "b_wgrad": layer_functions.wgrad,
    "a_dgrad": layer_functions.a_dgrad,
    "a_wgrad": layer_functions.wgrad,
    "norm'": layer_functions.norm_grad,
}
FUNCTIONS: Final[dict[str, OpFunction]] = {
    **{f"{b}.{name}": f for b in ("attn", "mlp") for name, f in _BLOCK_FUNCTIONS.items()},
    "attn.rope": attention_functions.rope,
    "attn.core": attention_functions.attention,
    "attn.core'": attention_functions.attention_grad,
    "attn.rope'": attention_functions.rope_grad,
    "mlp.core": layer_functions.mlp_core,
    "mlp.core'": layer_functions.mlp_core_grad,
    "embed": edge_functions.embed,
    "embed.post": edge_functions.embed_post,
    "embed'": edge_functions.embed_grad,
    "head.norm": layer_functions.norm,
    "head.norm'": layer_functions.norm_grad,
    "head.a": edge_functions.head,
    "head.a_dgrad": edge_functions.head_dgrad,
    "head.a_wgrad": edge_functions.head_wgrad,
    "loss.max": edge_functions.loss_max,
    "loss.sum": edge_functions.loss_sum,
    "loss.grad": edge_functions.loss_grad,
    "step.grad_norm": edge_functions.grad_norm,
    "step.adam": edge_functions.adam,
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
            layers = op.signature.size_bytes // GRAD_BYTES // shapes.layer_parameters  # type: ignore[union-attr]
            return parameters.gradient_range(op.layer, op.layer + layers - 1)
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
