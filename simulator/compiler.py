"""From a schedule to its plays: compiled with a cost model, and played on other durations.

Values have names in a schedule, and a program counts. So the compiler follows who writes what on
which comm lane, through loops: it takes repetitions one by one until all further ones wait alike.
A value written k repetitions before its read is waited for alike from repetition k on; one
repetition more settles which of these waits an earlier op has done. A value from before the loop is
read at another distance each time: until all such values were waited for, nothing settles.

Where ranks wait for later ones (``simulator.cpu_hosts``), a collective becomes a wait and a
transfer. Compute since each lane's last collective is counted along the issue order: a collective
counts as finished once compute waits for it or its lane starts another. This is simpler than what
the engines do, and the same in every repetition of a loop. The count restarts with each
micro-batch, so that all middle ones are alike. Where compute beside collectives was not measured
separately, all of it counts as alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simulator.contention import Contention
from simulator.cost import CostModel
from simulator.cpu_hosts import IdleTimes
from simulator.errors import ScheduleError
from simulator.kernels import clocks, compiler, lives, player
from simulator.kernels.load import call
from simulator.kernels.program_arrays import (
    PlayerState,
    Pricing,
    ProgramArrays,
    curve_of,
    machine_of,
    priced,
)
from simulator.op_table import Listing, OpTable, compiled_rows, families_of, listing_of, timed_rows
from simulator.ops import Signature
from simulator.program import WHOLE, WORK_UNIT, Loop, Program, Step
from simulator.schedule import COMPUTE, LANES, Schedule, Timeline
from simulator.waves import OPEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A compiled schedule: its arrays, and the durations of the machine that it was compiled for.
    ``rows``: the signatures of the pricing's first rows (``kernels.compiler``)."""

    arrays: ProgramArrays
    pricing: Pricing
    listing: Listing
    rows: Ints

    @cached_property
    def signatures(self) -> tuple[Signature, ...]:
        """The signatures, by their numbers in the program."""
        return tuple(one.signature for one in self.listing.played)

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
            resume=cost.cpu.resume,
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


def priced_signatures(
    table: OpTable, rows: Ints, durations: Ints, contention: Contention
) -> Pricing:
    """Return the pricing of signatures that take ``durations``, without launches inside them. Their
    families' numbers in the table become those among the families of their lane."""
    lanes, numbers = rows[:, compiler.N_LANE].tolist(), rows[:, compiler.N_FAMILY].tolist()
    used: list[dict[int, int]] = [{} for _ in range(max(lanes, default=COMPUTE) + 1)]
    for row, (lane, number) in enumerate(zip(lanes, numbers, strict=True)):
        rows[row, compiler.N_FAMILY] = used[lane].setdefault(number, len(used[lane]) + 1)
    works = np.empty((len(rows), player.NUMBER_COLUMNS), np.int64)
    call("price", rows, durations, works)
    families = [(None, *map(table.families.__getitem__, own)) for own in used]
    return priced(works, families, contention)


class _Compiler:
    """The tables of a schedule, as ``kernels.compiler`` takes them."""

    def __init__(self, schedule: Schedule, cost: CostModel) -> None:
        self.schedule, self.cost = schedule, cost
        self.listing = listing_of(schedule)
        self.ops, self.refs, self.values = self.listing.with_refs(lives.R_VALUE)
        self.rows = compiled_rows(cost, self.listing)
        self.lanes = int(self.rows[:, compiler.N_LANE].max(initial=COMPUTE)) + 1

    def compiled(self) -> Compiled:
        """Return the schedule's arrays. Raise ScheduleError as ``compile_program`` says."""
        cost, skew = self.cost, self.cost.cpu.skew
        awake_ns = self.rows[:, compiler.N_TIME] - self.rows[:, compiler.N_INLINE]
        pricing = priced_signatures(self.listing.table, self.rows, awake_ns, cost.contention)
        rows = self._most_rows()
        state = np.zeros(compiler.S_SIZE, np.int64)
        state[compiler.S_LANES], state[compiler.S_OPEN] = self.lanes, OPEN
        state[compiler.S_ROWS : compiler.S_ROWS + self.lanes] = pricing.rows
        state[compiler.S_SKEWS] = skew is not None
        state[compiler.S_SPLITS] = skew is not None and bool(skew.beside)
        alone, beside = map(curve_of, cost.cpu.skew_rows)
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
        return Compiled(arrays=arrays, pricing=pricing, listing=self.listing, rows=self.rows)

    def _most_rows(self) -> int:
        """Return at most how many steps are written: two an op and repetition."""
        rows = self.listing.segments
        ops = rows[:, lives.G_OPS_END] - rows[:, lives.G_OPS]
        return 2 * int(ops @ rows[:, lives.G_COUNT]) + 2

    def _arrays(self, steps: Ints, waits: Ints, leaves: Ints, parts: Ints) -> ProgramArrays:
        cost, launch = self.cost, self.cost.launch
        order = self.schedule.launch_order if cost.contention.admits_late else "comm_first"
        idle = self.rows[:, compiler.N_SAVED : compiler.N_WAKE + 1]
        config, curve = machine_of(
            self.lanes, launch.queue_depth if launch.mode == "async" else 0, order,
            int(idle.max(initial=0)), cost.cpu.resume,
        )  # fmt: skip
        return ProgramArrays(
            config=config, steps=steps, waits=waits, leaves=leaves, parts=parts,
            curve=curve,
        )  # fmt: skip


class Totals(NamedTuple):
    """Sums over an iteration, all in ns.

    ``comm_ns``: time with a collective in flight; ``exposed_ns``: its part with compute idle.
    ``compute_ns``: time with a compute op running. ``lane_ns``: time in flight of each
    comm lane; the compute lane's entry is 0.
    """

    makespan_ns: int
    compute_ns: int
    comm_ns: int
    exposed_ns: int
    lane_ns: tuple[int, ...]

    @classmethod
    def of(cls, state: PlayerState) -> Totals:
        """Return the sums of a play that ended in ``state``."""
        return cls(*state.sums, state.lane_ns)

    def with_constant(self, constant_ns: int) -> Totals:
        """Return the sums of an iteration that takes a constant more, in which nothing runs."""
        return self._replace(makespan_ns=self.makespan_ns + constant_ns)


# Plays of one schedule on machines that differ in durations alone ---------------------------------
# Other clocks, other draws.
#
# It is compiled once, and another machine is another pricing of the arrays. Where a machine has the
# effects that only CPU hosts have, it is compiled anew.

NEVER_NS: Final = -(1 << 60)
"""``held_ns`` of what does not stop its host."""


def repriced(schedule: Schedule, cost: CostModel) -> Repriced:
    """Return ``schedule``, compiled for machines like that of ``cost``; it is compiled once for all
    whose launches and admission of collectives are the same."""
    if cost.cpu.exist:
        return Repriced(schedule, cost)
    key = cost.launch.key, cost.contention.admission
    found = schedule.programs.get(key)
    if found is None:
        found = schedule.programs[key] = _First(schedule, cost)
    return Repriced(schedule, cost, found)


class Led(NamedTuple):
    """``totals``: of a play behind a host that is far ahead. ``late_ns``: the play's time if the
    host begins with it, and ``issued_ns`` when that has issued all; ``held_ns``: when it has at the
    earliest after the play begins. ``computes``: compute ops."""

    totals: Totals
    late_ns: int
    issued_ns: int
    held_ns: int
    computes: int


class _First:
    """What the first machine that a schedule is played on makes of it, and the timed ops of the
    last one at a clock. The schedule keeps it, so it keeps no schedule."""

    def __init__(self, schedule: Schedule, cost: CostModel) -> None:
        self.cost = cost
        self.compiled = compile_schedule(schedule, cost)
        self.timed_for: CostModel | None = None
        self.timed = np.empty((0, clocks.TIMED_COLUMNS))


class Repriced:
    """A schedule, compiled with ``cost``, or with that of ``first``, the first machine that it was
    played on."""

    def __init__(self, schedule: Schedule, cost: CostModel, first: _First | None = None) -> None:
        self.schedule = schedule
        self._first = first or _First(schedule, cost)
        self.cost, self._compiled = self._first.cost, self._first.compiled

    def program(self, cost: CostModel) -> Program:
        """Return the program on the machine of ``cost``."""
        if cost is not self.cost and cost.cpu.exist:
            return compile_program(self.schedule, cost)
        return self._compiled.program(cost, self.pricing(cost))

    def totals(self, cost: CostModel) -> Totals:
        """Return the sums of a play on the machine of ``cost``."""
        arrays, pricing = self.arrays(cost)
        return Totals.of(arrays.play(pricing))

    def led(self, cost: CostModel) -> Led:
        """Return a play behind a host that is far ahead, and what it is if the host begins with
        the device."""
        arrays, pricing = self.arrays(cost)
        led, late = arrays.play(pricing, led=True), arrays.play(pricing)
        held_ns = led.issued_ns if arrays.stops else NEVER_NS
        return Led(Totals.of(led), late.sums[0], late.issued_ns, held_ns, arrays.computes)

    def arrays(self, cost: CostModel) -> tuple[ProgramArrays, Pricing]:
        """Return the program as arrays, and its pricing on the machine of ``cost``."""
        if cost is not self.cost and cost.cpu.exist:
            made = compile_schedule(self.schedule, cost)
            return made.arrays, made.pricing
        return self._compiled.arrays, self.pricing(cost)

    def pricing(self, cost: CostModel) -> Pricing:
        """Return the durations and slowdowns of the program's signatures."""
        made = self._compiled
        if cost is self.cost:
            return made.pricing
        durations = self._durations(cost)
        if cost.contention.depends_on_streams or cost.contention is not self.cost.contention:
            rows = made.rows.copy()
            rows[:, compiler.N_FAMILY] = families_of(cost, made.listing)
            return priced_signatures(made.listing.table, rows, durations, cost.contention)
        numbers = np.empty((len(durations), player.NUMBER_COLUMNS), np.int64)
        call("price", made.rows, durations, numbers)
        return made.pricing._replace(numbers=numbers)

    def _durations(self, cost: CostModel) -> NDArray[np.int64]:
        made, clock_mhz = self._compiled, cost.change.clock_mhz
        if not clock_mhz:
            return np.array([cost.duration_ns(one) for one in made.signatures], np.int64)
        first, timed = self._first, cost.at_clock(0)
        if first.timed_for is not timed:
            first.timed_for, first.timed = timed, timed_rows(cost, made.listing)
        durations = np.empty(len(first.timed), np.int64)
        call("durations_at", first.timed, clock_mhz, durations)
        for number in np.flatnonzero(first.timed[:, clocks.KIND] == clocks.FUSED).tolist():
            durations[number] = cost.duration_ns(made.signatures[number])
        return durations


def record(plays: Repriced, cost: CostModel) -> Timeline:
    """Return the timeline on the machine of ``cost``. It equals that of ``engine.play`` to the
    nanosecond."""
    arrays, pricing = plays.arrays(cost)
    starts, ends = arrays.record(pricing)
    return Timeline(schedule=plays.schedule, start_ns=tuple(starts), end_ns=tuple(ends))
