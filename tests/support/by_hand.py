"""Programs that are written by hand, as steps, and their plays by the compiled player."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from simulator.compiler import Totals
from simulator.contention import ContentionFamily
from simulator.kernels import player
from simulator.kernels.program_arrays import Pricing, ProgramArrays, machine_of, priced
from simulator.program import Loop, Program, Step
from simulator.schedule import Schedule, Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def totals(program: Program, *, shortcut: bool = True) -> Totals:
    """Play ``program`` and return its sums; ``shortcut`` skips repetitions with an equal state.

    Raise InputError if it could take longer than 64-bit nanoseconds hold.
    """
    arrays, pricing = arrays_of(program)
    return Totals.of(arrays.play(pricing, shortcut=shortcut))


def record(schedule: Schedule, program: Program) -> Timeline:
    """Return the timeline of ``program``, whose ops are those of ``schedule``."""
    arrays, pricing = arrays_of(program)
    starts, ends = arrays.record(pricing)
    return Timeline(schedule=schedule, start_ns=tuple(starts), end_ns=tuple(ends))


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
        self.rows: dict[tuple[int, int, int], int] = {}
        self.numbers: list[list[int]] = [[0, 0, 0, 0] for _ in program.signatures]
        self.families: list[list[ContentionFamily | None]] = [[None] for _ in range(program.lanes)]

    def add_part(self, count: int, leaves: Sequence[Loop]) -> None:
        first = len(self.leaves)
        for leaf in leaves:
            begin = len(self.steps)
            for step in cast("tuple[Step, ...]", leaf.body):
                self._add_step(step)
            self.leaves.append((begin, len(self.steps), leaf.count))
        self.parts.append((first, len(self.leaves), count))

    def _add_step(self, step: Step) -> None:
        lane, work, family, waits, launch_ns, room, needs, part, number, idle, stops = step
        if number < 0:  # a wait for later ranks has no signature
            number = self.rows.setdefault((work, family, lane), len(self.numbers))
            if number == len(self.numbers):
                self.numbers.append([0, 0, 0, 0])
        row = self.numbers[number]
        row[part] = work
        row[player.FAMILY] = _place(self.families[lane], self.program.families[family])
        begin = len(self.waits)
        self.waits += waits
        self.steps.append(
            (lane, number, launch_ns, room, needs, part, begin, len(self.waits), *idle, stops)
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
        )

    def pricing(self) -> Pricing:
        numbers = _table(self.numbers, player.NUMBER_COLUMNS)
        return priced(numbers, self.families, self.program.contention)


def _place(families: list[Any], family: ContentionFamily | None) -> int:
    """Return the place of a family among those of its lane, where it is put if it is new."""
    if family not in families:
        families.append(family)
    return families.index(family)


def _table(rows: Sequence[Sequence[int]], columns: int) -> Ints:
    return np.array(rows, np.int64).reshape(len(rows), columns)
