"""A program as arrays, and its play by the compiled player.

The structure (steps, waits, loops) is that of a schedule; durations are a table of one row a
signature. So another clock, or a drawn machine, is another table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simulator.contention import SCALE, Contention, Family
from simulator.errors import InputError
from simulator.kernels import player
from simulator.kernels.load import call
from simulator.program import WORK_UNIT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simulator.implementation import LaunchOrder
    from simulator.resume import ResumeFit

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

MARKED: Final = 1 << 21
"""Entries of the shortcut's marks. A page of them takes memory when it is first written."""
MOST_NS: Final = float(1 << 61)
"""Times of programs are below this, so that no sum leaves 64 bits: 73 years."""


Families = tuple[tuple[Family | None, ...], ...]


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


class State(NamedTuple):
    """What the player ended with, in ns: makespan, compute, comm and exposed, of each lane, and
    when the host had issued all."""

    sums: tuple[int, int, int, int]
    lane_ns: tuple[int, ...]
    issued_ns: int


@dataclass(frozen=True, kw_only=True)
class ProgramArrays:
    """The structure of a program. ``config``: what holds for all of it; ``curve``: what compute
    loses after waits (``simulator.resume``); ``counts``: how often each step is played;
    ``lanes_of``: the lane of each row of a pricing."""

    config: Ints
    steps: Ints
    waits: Ints
    leaves: Ints
    parts: Ints
    curve: Floats
    counts: Floats
    lanes_of: tuple[int, ...]

    def play(self, pricing: Pricing, *, shortcut: bool = True, led: bool = False) -> State:
        """Return the sums of a play; ``led``: behind a host that had issued all before, where
        nothing stops it. Raise InputError if times could leave 64 bits."""
        state = self._play(pricing, shortcut, np.empty((0, 2), np.int64), led=led)
        lanes = int(self.config[player.C_LANES])
        compute_ns, comm_ns, exposed_ns = state[:3].tolist()
        return State(
            (int(state[player.NOW]), compute_ns, comm_ns, exposed_ns),
            tuple(state[player.LANE_NS : player.LANE_NS + lanes].tolist()),
            int(state[player.HOST]),
        )

    def record(self, pricing: Pricing) -> tuple[list[int], list[int]]:
        """Return the starts and the ends of ops in ns, in issue order. A wait for later ranks is
        the beginning of the op after it, a REST the end of the op before it."""
        steps = self.steps[self._unrolled]
        sizes = np.bincount(steps[:, player.LANE], minlength=player.LANES)
        begins = np.concatenate(([0], np.cumsum(sizes)))
        self.config[player.C_SPANS : player.C_SPANS + player.LANES] = begins[:-1]
        by_lane = np.empty((len(steps), 2), np.int64)
        self._play(pricing, False, by_lane)
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
        counted = (self.steps[:, player.LANE] == 0) & (self.steps[:, player.PART] != player.REST)
        return int(self.counts[counted].sum())

    def _play(self, pricing: Pricing, shortcut: bool, spans: Ints, *, led: bool = False) -> Ints:
        self._check_size(pricing)
        config = self.config.copy()
        if led and not self.stops:
            config[player.C_DEPTH] = 0
        config[player.C_SHORTCUT] = shortcut
        config[player.C_ROWS : player.C_ROWS + len(pricing.families)] = pricing.rows
        depth = int(config[player.C_DEPTH])
        ends, scratch = np.empty(max(1, depth), np.int64), np.empty(depth + 2, np.int64)
        heap, queued = np.empty(MARKED, np.int64), 64
        while True:
            state = np.zeros(player.S_SIZE, np.int64)
            state[player.HOST] = -int(self._plays[1]) if led else 0
            queue = np.empty((player.LANES, queued, player.QUEUE_COLUMNS), np.int64)
            status = call(
                "play_program", config, self.steps, self.waits, self.leaves, self.parts,
                pricing.numbers, pricing.rates, self.curve, state, queue, ends, heap, scratch,
                spans,
            )  # fmt: skip
            if status == player.PLAYED:
                return state
            assert status == player.NO_ROOM, "compute waits for what was never issued"
            queued *= 4

    @cached_property
    def _plays(self) -> tuple[Floats, float]:
        """How often each part of a signature is played, and the time of all launches (ns)."""
        numbers = self.steps[:, player.NUMBER]
        plays = np.zeros((int(numbers.max(initial=-1)) + 1, player.NUMBER_COLUMNS))
        np.add.at(plays, (numbers, self.steps[:, player.PART]), self.counts)
        return plays, float(self.counts @ self.steps[:, player.LAUNCH])

    def _check_size(self, pricing: Pricing) -> None:
        plays, launches_ns = self._plays
        works = float((plays * pricing.numbers[: len(plays)]).sum())
        most_ns = works / WORK_UNIT * float(pricing.rates.max()) / SCALE
        if most_ns + launches_ns >= MOST_NS:
            raise InputError(
                "The iteration may take longer than 73 years, more nanoseconds than 64 bits hold; "
                "ask for a smaller job, or for changes of the machine that slow it less."
            )


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
    numbers: Ints, families: Iterable[Iterable[Family | None]], contention: Contention
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
