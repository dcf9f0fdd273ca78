"""Wires: which passes of a pipeline read and send which messages, without any times."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from simulator.pipeline.orders import ORDERS, Action
from simulator.specs import PipelineSchedule


class Wire(NamedTuple):
    """A message: the numbers of its directed link, its sender and its receiver. ``lower``: the rank
    of the two that is before the other."""

    link: int
    sender: int
    receiver: int
    lower: int


class Wired(NamedTuple):
    """A pass, the numbers of the messages that it reads and sends (−1: none), and whether it is its
    chunk's first forward, or its last backward (``ends``)."""

    action: Action
    reads: int
    sends: int
    starts: bool
    ends: bool


class Wiring(NamedTuple):
    """The passes of each rank, and the messages between them."""

    ranks: tuple[tuple[Wired, ...], ...]
    messages: tuple[Wire, ...]


@lru_cache(maxsize=64)
def wiring(schedule: PipelineSchedule, pp: int, vpp: int, micros: int) -> Wiring:
    """Return the wires of a schedule, in the order of their first use."""
    wires = _Wires(pp, pp * vpp)
    ranks = tuple(
        tuple(_wired(rank, actions, wires))
        for rank, actions in enumerate(ORDERS[schedule](pp, vpp, micros))
    )
    return Wiring(ranks, tuple(wires.messages))


def _wired(rank: int, actions: list[Action], wires: _Wires) -> list[Wired]:
    last = {action.chunk: action for action in actions if action.kind != "F"}
    seen: set[int] = set()
    made = []
    for action in actions:
        starts = action.kind == "F" and action.chunk not in seen
        seen.add(action.chunk)
        reads, sends = wires.ends(rank, action)
        made.append(Wired(action, reads, sends, starts, last[action.chunk] == action))
    return made


class _Wires:
    def __init__(self, pp: int, stages: int) -> None:
        self.pp, self.stages = pp, stages
        self.messages: list[Wire] = []
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._links: dict[tuple[int, int], int] = {}

    def ends(self, rank: int, action: Action) -> tuple[int, int]:
        """Return the numbers of the messages that the action reads and sends."""
        kind, micro, stage = action.kind, action.micro, action.chunk * self.pp + rank
        if kind == "W":
            return -1, -1
        step, first, last = (1, 0, self.stages - 1) if kind == "F" else (-1, self.stages - 1, 0)
        reads = -1 if stage == first else self._number(kind, stage - step, step, micro)
        return reads, -1 if stage == last else self._number(kind, stage, step, micro)

    def _number(self, kind: str, stage: int, step: int, micro: int) -> int:
        """Return the number of what virtual ``stage`` sends of a micro-batch."""
        key = kind, stage, micro
        if key not in self._numbers:
            self._numbers[key] = len(self.messages)
            sender, receiver = stage % self.pp, (stage + step) % self.pp
            link = self._links.setdefault((sender, receiver), len(self._links))
            lower = sender if kind == "F" else receiver
            self.messages.append(Wire(link, sender, receiver, lower))
        return self._numbers[key]
