"""The context of a job on a rank: its rank numbers, device, lanes and ways to communicate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from domino_tune.runtime.lanes.lane import Lane
from domino_tune.runtime.launch_spec import Backend, Message
from simulator.schedule import TP

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """The context of a job on a rank; rank = dp_rank · tp + tp_rank. ``lanes`` maps the schedule's
    comm lane numbers to lanes, each over its own process group. ``tp_lane`` returns the
    tensor-parallel lane of a CTA count."""

    rank: int
    world_size: int
    tp: int
    dp: int
    device: torch.device
    backend: Backend
    lanes: Mapping[int, Lane]
    tp_lane: Callable[[int], Lane]
    control: dist.ProcessGroup
    send: Callable[[Message], None]
    heart: Callable[[], None]

    @property
    def tp_rank(self) -> int:
        """Return this rank's place in the tensor-parallel group."""
        return self.rank % self.tp

    @property
    def dp_rank(self) -> int:
        """Return the number of the replica that this rank belongs to."""
        return self.rank // self.tp

    def lanes_for(self, comm_ctas: int) -> Mapping[int, Lane]:
        """Return the lanes of a plan whose tensor-parallel collectives use ``comm_ctas`` CTAs; 0 is
        NCCL's own choice. The first call with a count makes its lane, so all ranks must call with
        the same counts in the same order. Raise InputError for a count other than 0 on gloo.
        """
        return {**self.lanes, TP: self.tp_lane(comm_ctas)} if comm_ctas else self.lanes

    def report(self, message: Message) -> None:
        """Send ``message`` (JSON) to the caller of run_job; only rank 0's messages are sent."""
        self.beat()
        if self.rank == 0:
            self.send(message)

    def beat(self) -> None:
        """Report to the watchdog that this rank makes progress. Costs about a microsecond."""
        self.heart()

    def barrier(self) -> None:
        """Wait, on the host, until every rank is here."""
        self.beat()
        dist.barrier(group=self.control)
        self.beat()

    def all_gather_objects(self, item: Item) -> list[Item]:
        """Return every rank's ``item`` (anything that pickles), in order of rank, on every rank."""
        found: list[Item | None] = [None] * self.world_size
        self.beat()
        dist.all_gather_object(found, item, group=self.control)
        self.beat()
        return found  # type: ignore[return-value]
