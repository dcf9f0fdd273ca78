"""A program as arrays, and its play by the compiled player.

The structure (steps, waits, loops) is that of a schedule; durations are a table of one row a
signature. So another clock, or a drawn machine, is another table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from threading import local
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simulator.contention import SCALE, Contention, ContentionFamily
from simulator.errors import InputError
from simulator.kernels import player
from simulator.kernels.load import call

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simulator.cpu_hosts import ResumeFit
    from simulator.implementation import LaunchOrder

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

MARKED: Final = 1 << 21
"""Entries of the shortcut's marks. A page of them takes memory when it is first written."""


Families = tuple[tuple[ContentionFamily | None, ...], ...]


class Pricing(NamedTuple):
    """``numbers``: work of a signature's parts, and its family's place among its lane's;
    ``families``: those of each lane, None first; ``rates``: slowdowns by families in flight, the
    last lane's fastest."""

    numbers: Ints
    rates: Ints
    families: Families

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of families of each lane."""
        return tuple(map(len, self.families))


class PlayerState(NamedTuple):
    """What the player ended with, in ns: makespan, compute, comm and exposed, of each lane, and
    when the host had issued all."""

    sums: tuple[int, int, int, int]
    lane_ns: tuple[int, ...]
    issued_ns: int


@dataclass(frozen=True, kw_only=True)
class ProgramArrays:
    """The structure of a program. ``config``: what holds for all of it; ``curve``: what compute
    loses after waits (``simulator.cpu_hosts``)."""

    config: Ints
    steps: Ints
    waits: Ints
    leaves: Ints
    parts: Ints
    curve: Floats

    def play(self, pricing: Pricing, *, shortcut: bool = True, led: bool = False) -> PlayerState:
        """Return the sums of a play; ``led``: behind a host that had issued all before, where
        nothing stops it. Raise InputError if times could leave 64 bits."""
        state = self._play(pricing, _NO_SPANS, shortcut=shortcut, led=led).tolist()
        return PlayerState(
            (state[player.NOW], *state[: player.LANE_NS]),
            tuple(state[player.LANE_NS : player.LANE_NS + int(self.config[player.C_LANES])]),
            state[player.HOST],
        )

    def record(self, pricing: Pricing) -> tuple[list[int], list[int]]:
        """Return the starts and the ends of ops in ns, in issue order. A wait for later ranks is
        the beginning of the op after it, a REST the end of the op before it."""
        steps = self.steps[self._unrolled]
        sizes = np.bincount(steps[:, player.LANE], minlength=player.LANES)
        begins = np.concatenate(([0], np.cumsum(sizes)))
        self.config[player.C_SPANS : player.C_SPANS + player.LANES] = begins[:-1]
        by_lane = np.empty((len(steps), 2), np.int64)
        self._play(pricing, by_lane, shortcut=False)
        spans = np.empty_like(by_lane)
        spans[np.argsort(steps[:, player.LANE], kind="stable")] = by_lane
        waits = pricing.numbers[steps[:, player.NUMBER], player.FAMILY] == 0
        rests = steps[:, player.PART] == player.REST
        starts = np.where(np.roll(waits, 1), np.roll(spans[:, 0], 1), spans[:, 0])
        ends = np.where(np.roll(rests, -1), np.roll(spans[:, 1], -1), spans[:, 1])
        ops = ~(waits | rests)
        return starts[ops].tolist(), ends[ops].tolist()

    @property
    def _unrolled(self) -> Ints:
        """The rows of all steps in the order in which they are played."""
        rows: list[Ints] = []
        for first, last, count in self.parts.tolist():
            leaves = self.leaves[first:last].tolist()
            rows += [np.tile(np.arange(a, b), times) for a, b, times in leaves] * count
        return np.concatenate(rows) if rows else np.empty(0, np.int64)

    @cached_property
    def stops(self) -> bool:
        """Whether an op stops the host."""
        return bool(self.steps[:, player.STOPS].any())

    @cached_property
    def computes(self) -> int:
        """The number of compute ops."""
        begins = (self.steps[:, player.LANE] == 0) & (self.steps[:, player.PART] != player.REST)
        return sum(
            count * times * int(begins[begin:end].sum())
            for first, last, count in self.parts.tolist()
            for begin, end, times in self.leaves[first:last].tolist()
        )

    def _play(self, pricing: Pricing, spans: Ints, *, shortcut: bool, led: bool = False) -> Ints:
        config = self.config.copy()
        config[player.C_SHORTCUT], config[player.C_LED] = shortcut, led
        if led and not self.stops:
            config[player.C_DEPTH] = 0
        config[player.C_ROWS : player.C_ROWS + len(pricing.families)] = pricing.rows
        _room.deepen(int(config[player.C_DEPTH]))
        while True:
            state = np.zeros(player.S_SIZE, np.int64)
            status = call(
                "play_program", config, self.steps, self.waits, self.leaves, self.parts,
                pricing.numbers, pricing.rates, self.curve, state, _room.queue, _room.ends,
                _room.heap, _room.scratch, spans,
            )  # fmt: skip
            if status == player.PLAYED:
                return state
            if status == player.TOO_LONG:
                raise InputError(
                    "The iteration may take longer than 73 years, more nanoseconds than 64 bits "
                    "hold; ask for a smaller job, or for changes of the machine that slow it less."
                )
            assert status == player.NO_ROOM, "compute waits for what was never issued"
            _room.widen()


class _Room(local):
    """What a play writes on, of each thread: queues of collectives, marks, the host's queue.
    Lengths of queues are powers of two."""

    def __init__(self) -> None:
        self.queue = np.empty((player.LANES, 64, player.QUEUE_COLUMNS), np.int64)
        self.heap = np.empty(MARKED, np.int64)
        self.ends, self.scratch = np.empty(1, np.int64), np.empty(3, np.int64)

    def widen(self) -> None:
        """Make the queues of collectives longer."""
        lanes, queued, columns = self.queue.shape
        self.queue = np.empty((lanes, 4 * queued, columns), np.int64)

    def deepen(self, depth: int) -> None:
        """Make the host's queue long enough."""
        if depth > len(self.ends):
            self.ends = np.empty(1 << (depth - 1).bit_length(), np.int64)
            self.scratch = np.empty(len(self.ends) + 2, np.int64)


_room: Final = _Room()
_NO_SPANS: Final = np.empty((0, 2), np.int64)


def machine_of(
    lanes: int, queue_depth: int, order: LaunchOrder, most_idle_ns: int, resume: ResumeFit | None
) -> tuple[Ints, Floats]:
    """Return the player's ``config`` of a machine, and what compute loses after waits on it."""
    config = np.zeros(player.C_SIZE, np.int64)
    config[player.C_LANES], config[player.C_DEPTH] = lanes, queue_depth
    config[player.C_ORDERED], config[player.C_FREE] = order == "ordered", order == "free"
    config[player.C_MOST_IDLE] = most_idle_ns
    config[player.C_RECOVERY] = round(resume.recovery_us * 1000) if resume else 0
    return config, curve_of(resume.rows if resume else ())


def curve_of(rows: Iterable[tuple[float, float]]) -> Floats:
    """Return the rows of a curve as an array [rows, 2]."""
    return np.array(list(rows), np.float64).reshape(-1, 2)


def priced(
    numbers: Ints, families: Iterable[Iterable[ContentionFamily | None]], contention: Contention
) -> Pricing:
    """Return the pricing of ``numbers`` with the families of each lane in their order."""
    lanes = tuple(map(tuple, families))
    return Pricing(numbers, _rates(contention, lanes), lanes)


@lru_cache(maxsize=256)
def _rates(contention: Contention, lanes: Families) -> Ints:
    rows = [contention.slowdowns(families) for families in product(*lanes)]
    table = np.zeros((len(rows), player.LANES), np.int64)
    table[:, : len(lanes)] = rows
    assert (table[:, : len(lanes)] >= SCALE).all()
    return table.ravel()
