"""A program as arrays, and its play by the compiled player.

The structure (steps, waits, loops) is that of a schedule; durations are a table of one row a
signature. So another clock, or a drawn machine, is another table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from simulator.contention import SCALE, Contention, Family
from simulator.idle_lane import NO_TIMES
from simulator.kernels import player
from simulator.kernels.load import call
from simulator.program import WORK_UNIT, Loop, Program, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

MOST_NS: Final = float(1 << 60)
"""Programs that could take longer are played with Python's own integers."""


class Pricing(NamedTuple):
    """``numbers``: work of a signature's parts, and its family; ``rates``: slowdowns by families in
    flight, the last lane's fastest; ``rows``: families of each lane, idle among them."""

    numbers: Ints
    rates: Ints
    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ProgramArrays:
    """The structure of a program. ``config``: what holds for all of it; ``counts``: how often each
    step is played; ``lanes_of``: the lane of each row of a pricing."""

    config: Ints
    steps: Ints
    waits: Ints
    leaves: Ints
    parts: Ints
    counts: NDArray[np.float64]
    lanes_of: tuple[int, ...]

    def play(self, pricing: Pricing, *, shortcut: bool = True) -> Ints | None:
        """Return the player's state at the end; None where times could leave 64 bits."""
        works = pricing.numbers[self.steps[:, player.NUMBER], self.steps[:, player.PART]]
        slowest = float(pricing.rates.max()) / SCALE
        if float(self.counts @ works) / WORK_UNIT * slowest >= MOST_NS:
            return None
        config = self.config.copy()
        config[player.C_SHORTCUT] = shortcut
        config[player.C_ROWS : player.C_ROWS + len(pricing.rows)] = pricing.rows
        depth = int(config[player.C_DEPTH])
        ends, scratch = np.empty(max(1, depth), np.int64), np.empty(depth + 2, np.int64)
        queued, marked = 64, 1 << 14
        while True:
            state = np.zeros(player.S_SIZE, np.int64)
            queue = np.empty((player.LANES, queued, player.QUEUE_COLUMNS), np.int64)
            heap = np.empty(marked, np.int64)
            status = call(
                "play_program", config, self.steps, self.waits, self.leaves, self.parts,
                pricing.numbers, pricing.rates, state, queue, ends, heap, scratch,
            )  # fmt: skip
            if status == player.PLAYED:
                return state
            assert status == player.NO_ROOM, "compute waits for what was never issued"
            queued, marked = 2 * queued, 4 * marked


def arrays_of(program: Program) -> tuple[ProgramArrays, Pricing] | None:
    """Return a program as arrays; None where a machine has effects that only CPU hosts have, or
    loops are nested deeper than layers in micro-batches."""
    parts = _parts(program)
    if parts is None or program.resume is not None or program.lanes > player.LANES:
        return None
    lines = _Lines(program)
    for count, leaves in parts:
        if not lines.add_part(count, leaves):
            return None
    return lines.arrays(), lines.pricing()


def _parts(program: Program) -> list[tuple[int, list[tuple[int, tuple[Step, ...]]]]] | None:
    """Return (count, leaves) of each part, a leaf being (count, steps)."""
    root = program.root
    if not root.body or isinstance(root.body[0], Step):
        return [(1, [(root.count, root.body)])]  # type: ignore[list-item]
    if all(not loop.body or isinstance(loop.body[0], Step) for loop in root.body):  # type: ignore[union-attr]
        loops = [root]
    elif root.count == 1:
        loops = list(root.body)  # type: ignore[arg-type]
    else:
        return None
    found = []
    for loop in loops:
        leaves = []
        for inner in loop.body:
            if not isinstance(inner, Loop) or any(isinstance(one, Loop) for one in inner.body):
                return None
            leaves.append((inner.count, inner.body))
        found.append((loop.count, leaves))
    return found  # type: ignore[return-value]


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

    def add_part(self, count: int, leaves: Sequence[tuple[int, tuple[Step, ...]]]) -> bool:
        first = len(self.leaves)
        for times, steps in leaves:
            begin = len(self.steps)
            for step in steps:
                if step.idle != NO_TIMES:
                    return False
                self._add_step(step)
            self.counts += [count * times] * len(steps)
            self.leaves.append((begin, len(self.steps), times))
        self.parts.append((first, len(self.leaves), count))
        return True

    def _add_step(self, step: Step) -> None:
        lane, work, family, waits, launch_ns, room, needs, part, number, _ = step
        if number < 0:
            key = work, family, lane
            number = self.rows.setdefault(key, len(self.numbers))
            if number == len(self.numbers):
                self.numbers.append([0, 0, 0, 0])
                self.lanes_of.append(lane)
        row = self.numbers[number]
        row[part] = work
        row[player.FAMILY] = self._family(lane, family)
        self.lanes_of[number] = lane
        begin = len(self.waits)
        self.waits += waits
        self.steps.append(
            (lane, number, launch_ns, room, needs, part, begin, len(self.waits))
        )  # fmt: skip

    def _family(self, lane: int, number: int) -> int:
        return _place(self.families[lane], self.program.families[number])

    def arrays(self) -> ProgramArrays:
        program, config = self.program, np.zeros(player.C_SIZE, np.int64)
        config[player.C_LANES], config[player.C_DEPTH] = program.lanes, program.queue_depth
        config[player.C_ORDERED] = program.launch_order == "ordered"
        config[player.C_FREE] = program.launch_order == "free"
        return ProgramArrays(
            config=config,
            steps=_table(self.steps, player.STEP_COLUMNS),
            waits=_table(self.waits, 2),
            leaves=_table(self.leaves, 3),
            parts=_table(self.parts, 3),
            counts=np.array(self.counts, np.float64),
            lanes_of=tuple(self.lanes_of),
        )

    def pricing(self) -> Pricing:
        numbers = _table(self.numbers, player.NUMBER_COLUMNS)
        return priced(numbers, self.families, self.program.contention)


def priced(numbers: Ints, families: list[list[Family | None]], contention: Contention) -> Pricing:
    """Return the pricing of ``numbers`` with the families of each lane in their order."""
    lanes = tuple(map(tuple, families))
    return Pricing(numbers, _rates(contention, lanes), tuple(map(len, families)))


def _place(families: list[Any], family: Family | None) -> int:
    """Return the place of a family among those of its lane, where it is put if it is new."""
    if family not in families:
        families.append(family)
    return families.index(family)


def _table(rows: Sequence[Sequence[int]], columns: int) -> Ints:
    return np.array(rows, np.int64).reshape(len(rows), columns)


@lru_cache(maxsize=256)
def _rates(contention: Contention, lanes: tuple[tuple[Family | None, ...], ...]) -> Ints:
    rows = [contention.slowdowns(families) for families in product(*lanes)]
    table = np.zeros((len(rows), player.LANES), np.int64)
    table[:, : len(lanes)] = rows
    assert (table[:, : len(lanes)] >= SCALE).all()
    return table.ravel()
