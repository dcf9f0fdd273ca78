"""Plays a Schedule on this rank, whole steps at a time: what the simulator predicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from domino_tune.runtime import player
from domino_tune.runtime.clock import Clock, clock_for
from domino_tune.runtime.lanes.lane import Lane
from domino_tune.runtime.ops.joins import sides_of
from domino_tune.runtime.ops.state import State
from simulator.errors import InputError
from simulator.schedule import Schedule, Timeline
from simulator.specs import Workload


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
        state.recomputed = player.recomputed(self.ops)
        state.sides = sides_of(self.ops, state.shapes.plan.row_slices)
        self.passage = player.passage(self.ops)
        self.clock = clock or clock_for(state.parameters.device)

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
        """Issue every op of a step. Return (start, end) of each by ``clock``, ns, and the names of
        the issued ops.

        Raise InputError where tokens and targets do not have the shape of the workload's batch.
        """
        _check_batch(self.state.shapes.workload, tokens, targets)
        self.state.tokens, self.state.targets, self.state.losses = tokens, targets, []
        return player.play(self.state, self.lanes, self.passage, clock)


def _check_batch(workload: Workload, *tensors: torch.Tensor) -> None:
    expected = (workload.micro_batch_size * workload.grad_accumulation, workload.seq_length)
    for tensor in tensors:
        if tuple(tensor.shape) != expected:
            raise InputError(
                f"A replica's tokens and targets must be {list(expected)} (micro_batch_size × "
                f"grad_accumulation, seq_length), got {list(tensor.shape)}."
            )
