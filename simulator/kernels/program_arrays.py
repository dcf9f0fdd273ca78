"""A program as arrays, and its play by the compiled player.

The structure (steps, waits, loops) is that of a schedule; durations are a table of one row a
signature. So another clock, or a drawn machine, is another table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np

from simulator.contention import SCALE, Contention, Family
from simulator.errors import InputError
from simulator.kernels import player
from simulator.kernels.load import call
from simulator.program import WORK_UNIT, Loop, Program, Step

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
    """What the player ended with, in ns: makespan, compute, comm and exposed, and of each lane."""

    sums: tuple[int, int, int, int]
    lane_ns: tuple[int, ...]


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

    def play(self, pricing: Pricing, *, shortcut: bool = True) -> State:
        """Return the sums of a play. Raise InputError if times could leave 64 bits."""
        state = self._play(pricing, shortcut, np.empty((0, 2), np.int64))
        lanes = int(self.config[player.C_LANES])
        compute_ns, comm_ns, exposed_ns = state[:3].tolist()
        return State(
            (int(state[player.NOW]), compute_ns, comm_ns, exposed_ns),
            tuple(state[player.LANE_NS : player.LANE_NS + lanes].tolist()),
        )

    def record(self, pricing: Pricing) -> list[list[tuple[int, int]]]:
        """Return (start, end) of each lane's steps in ns, in issue order."""
        lanes = self.steps[:, player.LANE]
        sizes = [int(self.counts[lanes == lane].sum()) for lane in range(player.LANES)]
        begins = np.concatenate(([0], np.cumsum(sizes)))
        self.config[player.C_SPANS : player.C_SPANS + player.LANES] = begins[:-1]
        spans = np.empty((int(begins[-1]), 2), np.int64)
        self._play(pricing, False, spans)
        return [
            list(map(tuple, spans[begins[lane] : begins[lane + 1]].tolist()))
            for lane in range(player.LANES)
        ]

    def _play(self, pricing: Pricing, shortcut: bool, spans: Ints) -> Ints:
        self._check_size(pricing)
        config = self.config.copy()
        config[player.C_SHORTCUT] = shortcut
        config[player.C_ROWS : player.C_ROWS + len(pricing.families)] = pricing.rows
        depth = int(config[player.C_DEPTH])
        ends, scratch = np.empty(max(1, depth), np.int64), np.empty(depth + 2, np.int64)
        heap, queued = np.empty(MARKED, np.int64), 64
        while True:
            state = np.zeros(player.S_SIZE, np.int64)
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


def arrays_of(program: Program) -> tuple[ProgramArrays, Pricing]:
    """Return a program as arrays, and its durations."""
    lines = _Lines(program)
    for count, leaves in _parts(program.root):
        lines.add_part(count, leaves)
    return lines.arrays(), lines.pricing()


def _parts(root: Loop) -> list[tuple[int, Sequence[Loop]]]:
    """Return (count, leaves) of each part: loops of steps are leaves, loops of these are parts."""
    if _is_leaf(root):
        return [(1, (root,))]
    loops = cast("tuple[Loop, ...]", root.body)
    if all(_is_leaf(loop) for loop in loops):
        return [(root.count, loops)]
    return [part for loop in loops for part in _parts(loop)] * root.count


def _is_leaf(loop: Loop) -> bool:
    return not loop.body or isinstance(loop.body[0], Step)


class _Lines:
    """Collects the rows of a program's arrays."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.steps: list[tuple[int, ...]] = []
        self.waits: list[tuple[int, int]] = []
        self.leaves: list[tuple[int, int, int]] = []
        self.parts: list[tuple[int, int, int]] = []
        self.counts: list[int] = []
        self.rows: dict[tuple[int, int, int], int] = {}
        self.numbers: list[list[int]] = [[0, 0, 0, 0] for _ in program.signatures]
        self.lanes_of = [0] * len(program.signatures)
        self.families: list[list[Family | None]] = [[None] for _ in range(program.lanes)]

    def add_part(self, count: int, leaves: Sequence[Loop]) -> None:
        first = len(self.leaves)
        for leaf in leaves:
            begin = len(self.steps)
            for step in cast("tuple[Step, ...]", leaf.body):
                self._add_step(step)
            self.counts += [count * leaf.count] * len(leaf.body)
            self.leaves.append((begin, len(self.steps), leaf.count))
        self.parts.append((first, len(self.leaves), count))

    def _add_step(self, step: Step) -> None:
        lane, work, family, waits, launch_ns, room, needs, part, number, idle = step
        if number < 0:  # a wait for later ranks has no signature
            number = self.rows.setdefault((work, family, lane), len(self.numbers))
            if number == len(self.numbers):
                self.numbers.append([0, 0, 0, 0])
                self.lanes_of.append(lane)
        row = self.numbers[number]
        row[part] = work
        row[player.FAMILY] = _place(self.families[lane], self.program.families[family])
        self.lanes_of[number] = lane
        begin = len(self.waits)
        self.waits += waits
        self.steps.append(
            (lane, number, launch_ns, room, needs, part, begin, len(self.waits), *idle)
        )

    def arrays(self) -> ProgramArrays:
        program = self.program
        config, curve = machine_of(
            program.lanes, program.queue_depth, program.launch_order, program.most_idle_ns,
            program.resume,
        )  # fmt: skip
        return ProgramArrays(
            config=config,
            steps=_table(self.steps, player.STEP_COLUMNS),
            waits=_table(self.waits, 2),
            leaves=_table(self.leaves, 3),
            parts=_table(self.parts, 3),
            curve=curve,
            counts=np.array(self.counts, np.float64),
            lanes_of=tuple(self.lanes_of),
        )

    def pricing(self) -> Pricing:
        numbers = _table(self.numbers, player.NUMBER_COLUMNS)
        return priced(numbers, self.families, self.program.contention)


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


def _place(families: list[Any], family: Family | None) -> int:
    """Return the place of a family among those of its lane, where it is put if it is new."""
    if family not in families:
        families.append(family)
    return families.index(family)


def _table(rows: Sequence[Sequence[int]], columns: int) -> Ints:
    return np.array(rows, np.int64).reshape(len(rows), columns)


@lru_cache(maxsize=256)
def _rates(contention: Contention, lanes: Families) -> Ints:
    rows = [contention.slowdowns(families) for families in product(*lanes)]
    table = np.zeros((len(rows), player.LANES), np.int64)
    table[:, : len(lanes)] = rows
    assert (table[:, : len(lanes)] >= SCALE).all()
    return table.ravel()
