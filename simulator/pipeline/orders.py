"""Orders and wires: which pass each rank of a pipeline plays next, which messages it needs.

A generator returns one rank's actions: ``F``, a forward pass; ``B``, a whole backward pass; or in
its place ``I``, the gradients of activations, and later ``W``, the gradients of weights.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from simulator.specs import ClusterSpec, PipelineSchedule, Workload

ActionKind = Literal["F", "B", "I", "W"]


class Beside(NamedTuple):
    """The pass, of the other kind, that runs beside one."""

    micro: int
    chunk: int


class Action(NamedTuple):
    """A pass of one chunk of a rank, of one micro-batch. ``beside``: a forward and the backward
    after it that run together (``simulator.overlapped``)."""

    kind: ActionKind
    micro: int
    chunk: int
    beside: Beside | None = None


Orders = list[list[Action]]
KINDS: Final[tuple[ActionKind, ActionKind]] = ("F", "B")
"""Of whole passes."""


def one_forward_one_backward(pp: int, vpp: int, micros: int) -> Orders:
    """Return 1F1B (arXiv 2104.04473): after a warm-up, forwards and backwards take turns.

    With several chunks a rank it is Megatron-LM's interleaved order: a rank plays a chunk for
    ``pp`` micro-batches, then the next chunk (core/pipeline_parallel/schedules.py).
    """
    passes = _numbered_passes(pp, vpp, micros)
    return [_alternating(_warm_up(rank, pp, vpp, micros), *passes) for rank in range(pp)]


def in_pairs(pp: int, vpp: int, micros: int) -> Orders:
    """Return 1F1B in which each forward of the steady phase runs beside the backward after it. For
    that a rank plays one forward more first (``num_warmup_microbatches`` there)."""
    passes, total = _numbered_passes(pp, vpp, micros), micros * vpp
    warm_ups = (min(total, _warm_up(rank, pp, vpp, micros) + 1) for rank in range(pp))
    return [_with_partners(_alternating(warm_up, *passes)) for warm_up in warm_ups]


def _with_partners(order: list[Action]) -> list[Action]:
    made, index = list(order), 0
    while index + 1 < len(made):
        one, other = made[index], made[index + 1]
        if (one.kind, other.kind) == ("F", "B"):
            made[index : index + 2] = _beside(one, other)
            index += 1
        index += 1
    return made


def _alternating(warm_up: int, forwards: list[Action], backwards: list[Action]) -> list[Action]:
    """Return ``warm_up`` forwards, then a forward and a backward in turn, then what is left."""
    steady = [
        action for pair in zip(forwards[warm_up:], backwards, strict=False) for action in pair
    ]
    return [*forwards[:warm_up], *steady, *backwards[len(forwards) - warm_up :]]


def _numbered_passes(pp: int, vpp: int, micros: int) -> tuple[list[Action], list[Action]]:
    """Return all forwards of a rank and all its backwards, in order; they are the same of each."""
    numbers = range(micros * vpp)
    forwards, backwards = (
        [_virtual(kind, number, pp, vpp) for number in numbers] for kind in KINDS
    )
    return forwards, backwards


def _virtual(kind: ActionKind, number: int, pp: int, vpp: int) -> Action:
    """Return a rank's forward, or backward, with that number."""
    if vpp == 1:
        return Action(kind, number, 0)
    group, within = divmod(number, pp * vpp)
    chunk = within // pp
    return Action(kind, group * pp + within % pp, chunk if kind == "F" else vpp - 1 - chunk)


def held_by_chunk(workload: Workload, cluster: ClusterSpec, rank: int) -> tuple[int, ...]:
    """Return how many forward passes of each of its chunks a rank holds when its first backward
    begins."""
    pp, vpp, micros = cluster.pp, cluster.vpp, workload.grad_accumulation
    if workload.pp_schedule == "gpipe" and pp > 1:
        return (micros,)
    if workload.pp_schedule == "dualpipev" and pp > 1:
        after, both = pp - 1 - rank, rank + 1
        return 2 * after + both, both
    held = min(micros * vpp, _warm_up(rank, pp, vpp, micros) + 1)
    groups, rest = divmod(held, pp * vpp)
    return tuple(groups * pp + min(pp, max(0, rest - chunk * pp)) for chunk in range(vpp))


def _warm_up(rank: int, pp: int, vpp: int, micros: int) -> int:
    """Return how many forwards a rank plays before its first backward, less one."""
    total = micros * vpp
    if vpp == 1:
        return min(total, pp - rank - 1)
    return min(total, 2 * (pp - rank - 1) + (vpp - 1) * pp)


def gpipe(pp: int, vpp: int, micros: int) -> Orders:
    """Return all forwards, then all backwards, last micro-batch first (arXiv 1811.06965)."""
    del vpp  # always 1
    forwards = [Action("F", micro, 0) for micro in range(micros)]
    backwards = [Action("B", micro, 0) for micro in reversed(range(micros))]
    return [[*forwards, *backwards] for _ in range(pp)]


def zero_bubble(pp: int, vpp: int, micros: int) -> Orders:
    """Return 1F1B with separate weight-gradient passes that fill waits: ZB-H1 of arXiv 2401.10241.

    Rank p defers p of them, so that it holds as much as the first rank of 1F1B; while the pipeline
    drains, one fills the wait after each backward.
    """
    return [
        _with_weights(rank, order)
        for rank, order in enumerate(one_forward_one_backward(pp, vpp, micros))
    ]


def _with_weights(rank: int, order: list[Action]) -> list[Action]:
    forwards, backwards, weights = sum(action.kind == "F" for action in order), 0, 0
    made = []
    for action in order:
        made.append(action if action.kind == "F" else action._replace(kind="I"))
        forwards -= action.kind == "F"
        backwards += action.kind == "B"
        drains = action.kind == "B" and not forwards
        if backwards - weights > rank or (drains and backwards > weights):
            made.append(Action("W", weights, 0))
            weights += 1
    return made + [Action("W", micro, 0) for micro in range(weights, backwards)]


def dualpipev(pp: int, vpp: int, micros: int) -> Orders:
    """Return DualPipeV, DualPipe (arXiv 2412.19437) folded to a V: each rank has a stage on the way
    there and one on the way back, and forwards of one run beside backwards of the other.

    It is the order of DeepSeek's DualPipe repository, and of torch.distributed.pipelining.
    """
    del vpp  # always 2
    return [_folded(rank, pp, micros) for rank in range(pp)]


def _folded(rank: int, pp: int, micros: int) -> list[Action]:
    """Return a rank's passes: chunk 0 is on the way there, chunk 1 on the way back."""
    after, both = pp - 1 - rank, rank + 1
    steady = micros - 2 * pp + both
    turns = "10" * both
    drain = [f"B{chunk}" for chunk in turns[:both]] + [f"I{chunk}" for chunk in turns[both:]]
    words = [
        *["F0"] * (2 * after), *["F0", "F1"] * both, *["I1", "W", "F1"] * after,
        *["F0+B1", "F1+B0"] * steady,
        *["B1", "F1+B0"] * after, *drain, *["W", "I0"] * after, *["W"] * both,
    ]  # fmt: skip
    if rank == pp - 1:  # the first pair of the last rank takes turns
        words[2 * both : 2 * both + 1] = ["F0", "B1"]
    return _numbered(words)


def _numbered(words: list[str]) -> list[Action]:
    """Return the passes of words such as F0, of chunk 0, and F0+B1, beside each other; each takes
    its chunk's next micro-batch, and W the oldest gradients of weights that wait."""
    counts, waiting = Counter[str](), deque[Action]()
    made: list[Action] = []
    for word in words:
        passes = [waiting.popleft()] if word == "W" else []
        for name in word.split("+") if word != "W" else ():
            kind, chunk = cast(ActionKind, name[0]), int(name[1])
            of = f"{'F' if kind == 'F' else 'B'}{chunk}"
            passes.append(Action(kind, counts[of], chunk))
            counts[of] += 1
            if kind == "I":
                waiting.append(Action("W", passes[-1].micro, chunk))
        made += _beside(*passes) if len(passes) == 2 else passes
    return made


def _beside(one: Action, other: Action) -> list[Action]:
    return [
        one._replace(beside=Beside(other.micro, other.chunk)),
        other._replace(beside=Beside(one.micro, one.chunk)),
    ]


ORDERS: Final[dict[PipelineSchedule, Callable[[int, int, int], Orders]]] = {
    "1f1b": one_forward_one_backward,
    "gpipe": gpipe,
    "zero-bubble": zero_bubble,
    "dualpipev": dualpipev,
}
"""Name of a schedule -> its generator: (pp, vpp, micro-batches) -> the actions of each rank."""


def orders_of(schedule: PipelineSchedule, pp: int, vpp: int, micros: int, *, pairs: bool) -> Orders:
    """Return the actions of each rank; ``pairs``: passes run beside each other, which 1F1B and
    DualPipeV have."""
    if pairs and schedule == "1f1b":
        return in_pairs(pp, vpp, micros)
    orders = ORDERS[schedule](pp, vpp, micros)
    if pairs:
        return orders
    return [[action._replace(beside=None) for action in order] for order in orders]


# Wires --------------------------------------------------------------------------------------------
# Which passes of a pipeline read and send which messages, without any times.

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
