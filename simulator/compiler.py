"""The compiler: a schedule and a cost model become a program.

Values have names in a schedule, and a program counts. So the compiler follows who writes what on
which comm lane, through loops: it takes repetitions one by one until all further ones wait alike.
A value written k repetitions before its read is waited for alike from repetition k on; one
repetition more settles which of these waits an earlier op has done. A value from before the loop is
read at another distance each time: until all such values were waited for, nothing settles.

Where ranks wait for later ones (``simulator.skew``), a collective becomes a wait and a transfer.
Compute since each lane's last collective is counted along the issue order: a collective counts as
finished once compute waits for it or its lane starts another. This is simpler than what the engines
do, and the same in every repetition of a loop. The count restarts with each micro-batch, so that
all middle ones are alike. Where compute beside collectives was not measured separately, all of it
counts as alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simulator.contention import Family
from simulator.cost import CostModel
from simulator.errors import ScheduleError
from simulator.idle_lane import IdleTimes
from simulator.kernels import compiler, lives, player
from simulator.kernels.load import call
from simulator.kernels.program_arrays import (
    Pricing,
    ProgramArrays,
    curve_of,
    machine_of,
    priced,
)
from simulator.op_table import Played, listing_of
from simulator.ops import Collective, Signature
from simulator.program import WHOLE, WORK_UNIT, Loop, Program, Step
from simulator.schedule import COMPUTE, LANES, Schedule
from simulator.waves import OPEN, room_beside

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A compiled schedule: its arrays, the durations of the machine that it was compiled for, and
    the signatures of the pricing's first rows with their waves."""

    arrays: ProgramArrays
    pricing: Pricing
    signatures: tuple[Signature, ...]
    waves: Ints

    def program(self, cost: CostModel, pricing: Pricing) -> Program:
        """Return the program as steps, on the machine of ``cost`` with its ``pricing``."""
        arrays, families = self.arrays, pricing.families
        begins = np.concatenate(([0], np.cumsum([len(own) - 1 for own in families])))
        waits, rows = arrays.waits.tolist(), []
        for lane, number, launch, room, needs, part, first, last, *more in arrays.steps.tolist():
            work, family = (
                int(pricing.numbers[number, column]) for column in (part, player.FAMILY)
            )
            known = number if number < len(self.signatures) else -1
            rows.append(Step(
                lane, work, int(begins[lane]) + family if family else 0,
                tuple(map(tuple, waits[first:last])), launch, room, needs, part, known,
                IdleTimes(*more[:2]), bool(more[2]),
            ))  # fmt: skip
        leaves = [
            Loop(body=tuple(rows[first:last]), count=count)
            for first, last, count in arrays.leaves.tolist()
        ]
        parts = tuple(
            Loop(body=tuple(leaves[first:last]), count=count)
            for first, last, count in arrays.parts.tolist()
        )
        config = arrays.config.tolist()
        ordered, free = config[player.C_ORDERED], config[player.C_FREE]
        return Program(
            root=Loop(body=parts),
            lanes=config[player.C_LANES],
            families=(None, *(one for own in families for one in own[1:])),
            contention=cost.contention,
            queue_depth=config[player.C_DEPTH],
            launch_order="ordered" if ordered else "free" if free else "comm_first",
            resume=cost.resume,
            signatures=self.signatures,
            most_idle_ns=config[player.C_MOST_IDLE],
        )


def compile_program(schedule: Schedule, cost: CostModel) -> Program:
    """Return the program of ``schedule``: every op with its duration and its waits.

    Raise ScheduleError if a collective reads a result of another comm lane.
    """
    made = compile_schedule(schedule, cost)
    return made.program(cost, made.pricing)


def compile_schedule(schedule: Schedule, cost: CostModel) -> Compiled:
    """Return ``compile_program`` as arrays."""
    return _Compiler(schedule, cost).compiled()


class _Made(NamedTuple):
    """A signature's entries in a program: its row for ``kernels.compiler`` and the works of its
    parts, both without its family; its waves and its family."""

    row: tuple[int, ...]
    works: tuple[int, ...]
    waves: int
    family: Family


class _Compiler:
    """The tables of a schedule, as ``kernels.compiler`` takes them."""

    def __init__(self, schedule: Schedule, cost: CostModel) -> None:
        self.schedule, self.cost = schedule, cost
        self.listing = listing_of(schedule)
        self.ops, self.refs, self.values = self.listing.with_refs(lives.R_VALUE)
        self.lanes = max((one.lane for one in self.listing.played), default=COMPUTE) + 1
        self.families: list[dict[Family | None, int]] = [{None: 0} for _ in range(self.lanes)]
        self._make_signatures()

    def _make_signatures(self) -> None:
        played, compiled = self.listing.played, self.cost.compiled
        needs = [self._needs(one.signature) for one in played]
        least = min({one for one in needs if one}, default=OPEN)
        rows, numbers, waves = [], [], []
        for one, needed in zip(played, needs, strict=True):
            signature, lane, _, replayed = one
            made = compiled.get((signature, replayed, least))
            if made is None:
                made = self._made(one, needed, least)
                compiled[signature, replayed, least] = made
            own = self.families[lane]
            family = own.setdefault(made.family, len(own))
            rows.append((*made.row, family))
            numbers.append((*made.works, family))
            waves.append(made.waves)
        self.rows = np.array(rows, np.int64).reshape(-1, compiler.SIGNATURE_COLUMNS)
        self.pricing_rows = np.array(numbers, np.int64).reshape(-1, player.NUMBER_COLUMNS)
        self.waves = np.array(waves, np.int64)

    def _made(self, played: Played, needed: int, least: int) -> _Made:
        """Return a signature's rows; cache them for each machine. ``least``: the fewest SMs that a
        collective of the schedule needs."""
        cost, launch, signature = self.cost, self.cost.launch, played.signature
        duration_ns, idle = cost.awake_ns(signature), cost.idle_times(signature)
        launch_ns = launch.of(signature, replayed=played.replayed) if launch.mode != "none" else 0
        inline_ns = launch_ns if launch.mode == "inline" else 0
        if isinstance(signature, Collective):  # an awake lane needs no launch
            idle = idle._replace(wake_ns=idle.wake_ns + inline_ns)
        else:
            duration_ns += inline_ns
        count, room = room_beside(signature, cost.contention, least)
        first_ns = duration_ns * (count - 1) // count
        return _Made(
            row=(
                launch_ns,
                room,
                needed,
                first_ns > 0,
                *idle,
                duration_ns,
                launch.stops(signature),
            ),
            works=tuple(
                part * WORK_UNIT for part in (duration_ns, first_ns, duration_ns - first_ns)
            ),
            waves=count,
            family=cost.family(signature),
        )

    def _needs(self, signature: Signature) -> int:
        if not isinstance(signature, Collective) or signature.needs_no_room:
            return 0
        return self.cost.contention.sms_of(self.cost.family(signature))

    def compiled(self) -> Compiled:
        """Return the schedule's arrays. Raise ScheduleError as ``compile_program`` says."""
        cost, skew = self.cost, self.cost.skew
        pricing = priced(self.pricing_rows, self.families, cost.contention)
        rows = self._most_rows()
        state = np.zeros(compiler.S_SIZE, np.int64)
        state[compiler.S_LANES], state[compiler.S_OPEN] = self.lanes, OPEN
        state[compiler.S_ROWS : compiler.S_ROWS + self.lanes] = pricing.rows
        state[compiler.S_SKEWS] = skew is not None
        state[compiler.S_SPLITS] = skew is not None and bool(skew.beside)
        curves = (skew.rows, skew.beside) if skew else ((), ())
        alone, beside = map(curve_of, curves)
        late, steps = np.empty(rows, np.int64), np.empty((rows, player.STEP_COLUMNS), np.int64)
        waits = np.empty((rows * (self.lanes - 1) + 1, 2), np.int64)
        leaves, begins = np.empty((rows + 1, 3), np.int64), np.empty(rows + 2, np.int64)
        counted = np.empty(2 * player.LANES, np.int64)
        parts = []
        for number, (begin, end, count) in enumerate(self.listing.parts):
            lowest, layers = self.listing.layers(number, self.ops, self.refs)
            state[compiler.S_LOWEST] = lowest
            written = np.zeros((layers, self.values), np.int64)
            seen = np.full((self.values, 2), lives.NOTHING, np.int64)
            first = int(state[compiler.S_LEAVES])
            wrong = call(
                "compile_part", state, self.ops, self.refs, self.rows,
                self.listing.segments[begin:end], self.listing.listed, alone, beside,
                pricing.rates, late, written, steps, waits, leaves, begins, seen, counted,
            )  # fmt: skip
            if wrong != lives.NOTHING:
                raise ScheduleError(
                    f"Collective {self.listing.op(wrong).role!r} reads a result of another "
                    f"comm lane; put a compute op between them. Lanes: {', '.join(LANES)}."
                )
            parts.append((first, int(state[compiler.S_LEAVES]), count))
        late_rows = np.zeros((int(state[compiler.S_LATE]), player.NUMBER_COLUMNS), np.int64)
        late_rows[:, WHOLE] = late[: len(late_rows)] * WORK_UNIT
        pricing = pricing._replace(numbers=np.concatenate((pricing.numbers, late_rows)))
        arrays = self._arrays(
            steps[: state[compiler.S_STEPS]].copy(), waits[: state[compiler.S_WAITS]].copy(),
            leaves[: state[compiler.S_LEAVES]].copy(),
            np.array(parts, np.int64).reshape(-1, 3),
        )  # fmt: skip
        return Compiled(
            arrays=arrays,
            pricing=pricing,
            signatures=tuple(one.signature for one in self.listing.played),
            waves=self.waves,
        )

    def _most_rows(self) -> int:
        """Return at most how many steps are written: two an op and repetition."""
        rows = self.listing.segments
        ops = rows[:, lives.G_OPS_END] - rows[:, lives.G_OPS]
        return 2 * int(ops @ rows[:, lives.G_COUNT]) + 2

    def _arrays(self, steps: Ints, waits: Ints, leaves: Ints, parts: Ints) -> ProgramArrays:
        cost, launch = self.cost, self.cost.launch
        order = self.schedule.launch_order if cost.contention.admits_late else "comm_first"
        idle = self.rows[:, [compiler.N_SAVED, compiler.N_WAKE]]
        config, curve = machine_of(
            self.lanes, launch.queue_depth if launch.mode == "async" else 0, order,
            int(idle.max(initial=0)), cost.resume,
        )  # fmt: skip
        return ProgramArrays(
            config=config, steps=steps, waits=waits, leaves=leaves, parts=parts,
            curve=curve, lanes_of=tuple(one.lane for one in self.listing.played),
        )  # fmt: skip
