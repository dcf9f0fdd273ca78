"""Wires: which passes of a pipeline read and send which messages, without any times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.pipeline.orders import Action, Orders, orders_of
from simulator.specs import PipelineSchedule

Ints = npt.NDArray[np.int64]
NUMBERS: Final = {"F": 0, "B": 1, "I": 2, "W": 3}
"""Kinds of actions -> their numbers in ``Wiring.tasks``."""
FORWARD, WEIGHTS = NUMBERS["F"], NUMBERS["W"]
# Columns of links, and of tasks.
LINK, SENDER, RECEIVER, LOWER = range(4)
RANK, KIND, MICRO, CHUNK, BESIDE_MICRO, BESIDE_CHUNK = range(6)


class Wire(NamedTuple):
    """A message: the numbers of its directed link, its sender and its receiver. ``lower``: the rank
    of the two that is before the other."""

    link: int
    sender: int
    receiver: int
    lower: int


class Wired(NamedTuple):
    """A pass, and the numbers of the messages that it reads and sends (−1: none)."""

    action: Action
    reads: int
    sends: int


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
    """The passes of each rank in ``orders``, and the messages between them. Tasks are numbered rank
    after rank. ``ends``: the numbers of the messages that a task reads and sends (−1: none), a row
    a task. ``links``: link, sender, receiver and lower rank, a row a message."""

    orders: Orders
    ends: Ints
    links: Ints

    @cached_property
    def first(self) -> Ints:
        """The number of each rank's first task, and how many there are."""
        return np.cumsum([0, *map(len, self.orders)], dtype=np.int64)

    @cached_property
    def tasks(self) -> Ints:
        """Rank, kind, micro-batch and chunk of each task, and micro-batch and chunk of the pass
        beside it (−1: none)."""
        return tasks_of(self.orders)

    @cached_property
    def ranks(self) -> tuple[tuple[Wired, ...], ...]:
        """The passes of each rank with their messages."""
        ends = self.ends.tolist()
        return tuple(
            tuple(Wired(one, *own) for one, own in zip(order, ends[low:high], strict=True))
            for order, (low, high) in zip(self.orders, pairwise(self.first), strict=True)
        )

    @cached_property
    def messages(self) -> tuple[Wire, ...]:
        """The messages."""
        return tuple(Wire(*row) for row in self.links.tolist())

    @cached_property
    def starting(self) -> tuple[Ends, ...]:
        """Each chunk's first forward."""
        forward = np.flatnonzero(self.tasks[:, KIND] == FORWARD)
        return self._ends(forward[numbered(self.tasks[forward][:, [RANK, CHUNK]]).firsts])

    @cached_property
    def ending(self) -> tuple[Ends, ...]:
        """Each chunk's last backward."""
        back = np.flatnonzero(self.tasks[:, KIND] != FORWARD)[::-1]
        return self._ends(back[numbered(self.tasks[back][:, [RANK, CHUNK]]).firsts])

    def _ends(self, numbers: Ints) -> tuple[Ends, ...]:
        rows = np.column_stack([numbers, self.tasks[numbers][:, [RANK, CHUNK]]])
        return tuple(Ends(*row) for row in sorted(rows.tolist()))

    @cached_property
    def kinds(self) -> Kinds:
        """Tasks by rank, chunk, kind, what runs beside them, and whether they are the first of
        these that the rank plays."""
        tasks = self.tasks
        is_first = np.zeros(len(tasks), np.int64)
        is_first[numbered(tasks[:, [RANK, KIND, CHUNK]]).firsts] = 1
        beside_first = tasks[:, BESIDE_MICRO] == 0
        of_task, firsts = numbered(
            np.column_stack([tasks[:, [RANK, KIND, CHUNK, BESIDE_CHUNK]], is_first, beside_first])
        )
        begins = self.first.tolist()
        found = zip(firsts.tolist(), tasks[firsts, RANK].tolist(), strict=True)
        actions = tuple((rank, self.orders[rank][task - begins[rank]]) for task, rank in found)
        return Kinds(actions, of_task)


class Numbered(NamedTuple):
    """A number for each row, equal for equal ones and in the order in which they are first used;
    and the first row of each number."""

    numbers: Ints
    firsts: Ints


def numbered(rows: Ints) -> Numbered:
    """Return numbers of ``rows``, whose values are −1 or more."""
    codes = np.zeros(len(rows), np.int64)
    for column in rows.T:
        codes = codes * (int(column.max(initial=0)) + 2) + column + 1
    _, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return Numbered(places[inverse], firsts[order])


def tasks_of(orders: Orders) -> Ints:
    """Return ``Wiring.tasks`` of these orders."""
    rows = [
        (rank, NUMBERS[one.kind], one.micro, one.chunk, *(one.beside or (-1, -1)))
        for rank, order in enumerate(orders)
        for one in order
    ]
    return np.array(rows, np.int64).reshape(-1, BESIDE_CHUNK + 1)


@lru_cache(maxsize=64)
def wiring(
    schedule: PipelineSchedule, pp: int, vpp: int, micros: int, *, pairs: bool = False
) -> Wiring:
    """Return the wires of a schedule, in the order of their first use."""
    orders = orders_of(schedule, pp, vpp, micros, pairs=pairs)
    tasks = tasks_of(orders)
    folds = schedule == "dualpipev"

    def rank_of(stage: Ints) -> Ints:
        """Return the rank of each virtual stage, as ``chunks.place`` does."""
        return np.where(folds & (stage >= pp), 2 * pp - 1 - stage, stage % pp)

    chunk, back = tasks[:, CHUNK], tasks[:, KIND] != FORWARD
    stage = chunk * pp + np.where(folds & (chunk == 1), pp - 1 - tasks[:, RANK], tasks[:, RANK])
    step = np.where(back, -1, 1)
    senders = np.column_stack([stage - step, stage])
    receivers = senders + step[:, None]
    exist = (np.minimum(senders, receivers) >= 0) & (np.maximum(senders, receivers) < pp * vpp)
    exist &= (tasks[:, KIND] != WEIGHTS)[:, None] & (rank_of(senders) != rank_of(receivers))
    places = np.nonzero(exist)
    micro, backs = tasks[places[0], MICRO], back[places[0]]
    sent = np.column_stack([backs, senders[places], receivers[places], micro])
    numbers, firsts = numbered(sent)
    ends = np.full((len(tasks), 2), -1, np.int64)
    ends[places] = numbers
    goes_back, *stages = sent[firsts, :3].T
    sender, receiver = map(rank_of, stages)
    links = numbered(np.column_stack([sender, receiver])).numbers
    lower = np.where(goes_back, receiver, sender)
    if folds:
        lower = np.minimum(sender, receiver)
    made = Wiring(orders, ends, np.column_stack([links, sender, receiver, lower]))
    made.__dict__["tasks"] = tasks
    return made
