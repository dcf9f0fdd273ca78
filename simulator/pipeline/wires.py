"""Wires: which passes of a pipeline read and send which messages, without any times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.chunks import place, stage_of
from simulator.pipeline.orders import Action, orders_of
from simulator.specs import PipelineSchedule

Ints = npt.NDArray[np.int64]


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


class Ends(NamedTuple):
    """A task that begins or ends what its chunk does: its number, rank and chunk."""

    task: int
    rank: int
    chunk: int


class Kinds(NamedTuple):
    """Tasks that take the same time: a rank and an action for each kind, and of each task its
    kind."""

    firsts: tuple[tuple[int, Action], ...]
    of_task: Ints


@dataclass(frozen=True, eq=False)
class Wiring:
    """The passes of each rank, and the messages between them. Tasks are numbered rank after
    rank."""

    ranks: tuple[tuple[Wired, ...], ...]
    messages: tuple[Wire, ...]

    @cached_property
    def first(self) -> Ints:
        """The number of each rank's first task, and how many there are."""
        return np.cumsum([0, *map(len, self.ranks)], dtype=np.int64)

    @cached_property
    def ends(self) -> Ints:
        """What each task reads and sends, a row a task."""
        rows = [(one.reads, one.sends) for rank in self.ranks for one in rank]
        return np.array(rows, np.int64).reshape(-1, 2)

    @cached_property
    def links(self) -> Ints:
        """Link, sender, receiver and lower rank of each message, a row a message."""
        return np.array(self.messages, np.int64).reshape(-1, 4)

    @cached_property
    def starting(self) -> tuple[Ends, ...]:
        """Each chunk's first forward."""
        return self._where("starts")

    @cached_property
    def ending(self) -> tuple[Ends, ...]:
        """Each chunk's last backward."""
        return self._where("ends")

    def _where(self, name: str) -> tuple[Ends, ...]:
        return tuple(
            Ends(int(self.first[rank]) + index, rank, one.action.chunk)
            for rank, tasks in enumerate(self.ranks)
            for index, one in enumerate(tasks)
            if getattr(one, name)
        )

    @cached_property
    def kinds(self) -> Kinds:
        """Tasks by rank, chunk, kind, what runs beside them, and whether they are the first of
        these that the rank plays."""
        numbers: dict[tuple[object, ...], int] = {}
        firsts, of_task = [], []
        for rank, tasks in enumerate(self.ranks):
            seen: set[tuple[str, int]] = set()
            for kind, micro, chunk, beside in (one.action for one in tasks):
                partner = beside and (beside.chunk, beside.micro == 0)
                key = rank, kind, chunk, (kind, chunk) not in seen, partner
                seen.add((kind, chunk))
                if key not in numbers:
                    numbers[key] = len(numbers)
                    firsts.append((rank, Action(kind, micro, chunk, beside)))
                of_task.append(numbers[key])
        return Kinds(tuple(firsts), np.array(of_task, np.int64))


@lru_cache(maxsize=64)
def wiring(
    schedule: PipelineSchedule, pp: int, vpp: int, micros: int, *, pairs: bool = False
) -> Wiring:
    """Return the wires of a schedule, in the order of their first use."""
    wires = _Wires(schedule, pp, pp * vpp)
    ranks = tuple(
        tuple(_wired(rank, actions, wires))
        for rank, actions in enumerate(orders_of(schedule, pp, vpp, micros, pairs=pairs))
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
    def __init__(self, schedule: PipelineSchedule, pp: int, stages: int) -> None:
        self.schedule: PipelineSchedule = schedule
        self.pp, self.stages = pp, stages
        self.messages: list[Wire] = []
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._links: dict[tuple[int, int], int] = {}

    def ends(self, rank: int, action: Action) -> tuple[int, int]:
        """Return the numbers of the messages that the action reads and sends."""
        if action.kind == "W":
            return -1, -1
        kind, micro = "F" if action.kind == "F" else "B", action.micro
        stage = stage_of(rank, action.chunk, self.pp, self.schedule)
        step, first, last = (1, 0, self.stages - 1) if kind == "F" else (-1, self.stages - 1, 0)
        reads = -1 if stage == first else self._number(kind, stage - step, step, micro)
        return reads, -1 if stage == last else self._number(kind, stage, step, micro)

    def _number(self, kind: str, stage: int, step: int, micro: int) -> int:
        """Return the number of the message that virtual ``stage`` sends; add it if it is new. A
        rank sends itself none."""
        key = kind, stage, micro
        sender, receiver = (place(one, self.pp, self.schedule)[0] for one in (stage, stage + step))
        if sender == receiver:
            return -1
        if key not in self._numbers:
            self._numbers[key] = len(self.messages)
            link = self._links.setdefault((sender, receiver), len(self._links))
            lower = sender if kind == "F" else receiver
            if self.schedule == "dualpipev":
                lower = min(sender, receiver)
            self.messages.append(Wire(link, sender, receiver, lower))
        return self._numbers[key]
