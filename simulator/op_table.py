"""Ops as rows of numbers: what kernels know of a schedule.

Op templates that plans share are entered once, for all schedules of a kind of layer; a schedule is
a list of their rows. Values, the memory that they are in, and signatures are numbers here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from simulator.contention import ContentionFamily
from simulator.cost import CostModel
from simulator.kernels import clocks, compiler, lives
from simulator.kernels.load import call
from simulator.ops import Collective, Fused, Signature
from simulator.power import FAMILIES
from simulator.schedule import RECOMPUTED_SUFFIX, STEP, OpTemplate, Repeat, Schedule
from simulator.values import Ref
from simulator.waves import OPEN, room_beside

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class PlayedSignature(NamedTuple):
    """A signature where it is played: on a lane, whether in the optimizer's step, and whether by a
    graph of a part of a layer."""

    signature: Signature
    lane: int
    in_step: bool
    replayed: bool = False


class _Value(NamedTuple):
    """The number of a value, that of the value whose memory it uses, and whether it is logits."""

    number: int
    storage: int
    is_logits: bool


class OpTable:
    """The ops that were entered, each once, by threads one at a time. ``played``: of the
    signatures' numbers; ``families``: of the contention families'."""

    def __init__(self) -> None:
        self.played: list[PlayedSignature] = []
        self._played: dict[PlayedSignature, int] = {}
        self._values: dict[tuple[object, ...], _Value] = {}  # of a Ref without its layer
        self._rows: dict[int, int] = {}
        self._entered: list[OpTemplate] = []  # which keeps their ids
        self._ops, self._refs = _RowStore(lives.OP_COLUMNS), _RowStore(lives.REF_COLUMNS)
        self._entering = Lock()
        self.families: list[ContentionFamily] = []
        self._families: dict[ContentionFamily, int] = {}

    def family(self, family: ContentionFamily) -> int:
        """Return the number of a contention family."""
        with self._entering:
            number = self._families.setdefault(family, len(self.families))
            if number == len(self.families):
                self.families.append(family)
            return number

    @property
    def values(self) -> int:
        """The number of values that are known."""
        return len(self._values)

    def ops(self, templates: Iterable[OpTemplate]) -> Ops:
        """Return ops as rows; new ones are entered."""
        if isinstance(templates, Ops) and templates.table is self:
            return templates
        rows, given = self._rows, list(templates)
        if not rows.keys() >= set(map(id, given)):
            with self._entering:
                for template in given:
                    if id(template) not in rows:
                        self._enter(template)
        return Ops(self, np.array([rows[id(one)] for one in given], np.int64))

    def entered(self, row: int) -> OpTemplate:
        """Return the op of a row."""
        return self._entered[row]

    def tables(self) -> tuple[Ints, Ints]:
        """Return the ops and the values that they read and write, as ``kernels.lives`` says."""
        with self._entering:
            return self._ops.array(), self._refs.array()

    def _enter(self, template: OpTemplate) -> None:
        role = template.role
        played = PlayedSignature(
            template.signature, template.lane, role.startswith(STEP), template.replayed
        )
        number = self._played.setdefault(played, len(self.played))
        if number == len(self.played):
            self.played.append(played)
        begin = len(self._refs)
        for ref in template.reads:
            self._refs.add(self._ref(ref, 0))
        reads_end = len(self._refs)
        sizes = template.sizes or (0,) * len(template.writes)
        for ref, size in zip(template.writes, sizes, strict=True):
            self._refs.add(self._ref(ref, size))
        mark = lives.SUMS if role == "loss.sum" else 0
        mark = lives.RECOMPUTES if RECOMPUTED_SUFFIX in role else mark
        mark = lives.UPDATES if played.in_step else mark
        self._entered.append(template)
        self._ops.add((
            template.lane, number, template.offset, begin, reads_end, reads_end, len(self._refs),
            mark,
        ))  # fmt: skip
        self._rows[id(template)] = len(self._ops) - 1

    def _ref(self, ref: Ref, size: int) -> tuple[int, ...]:
        value = self._values.get(ref[:-1]) or self._value(ref)
        return value.number, ref.layer, value.storage, size, size * value.is_logits

    def _value(self, ref: Ref) -> _Value:
        storage, number = ref.storage, len(self._values)
        if storage != ref:
            number = (self._values.get(storage[:-1]) or self._value(storage)).number
        found = self._values[ref[:-1]] = _Value(len(self._values), number, ref.is_logits)
        return found


class _RowStore:
    """Rows of numbers that are added one by one, and the array of all."""

    def __init__(self, columns: int) -> None:
        self._array = np.empty((256, columns), np.int64)
        self._count = 0
        self._added: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return self._count + len(self._added)

    def add(self, row: tuple[int, ...]) -> None:
        self._added.append(row)

    def array(self) -> Ints:
        count = len(self)
        if count > len(self._array):
            grown = np.empty((2 * count, self._array.shape[1]), np.int64)
            grown[: self._count] = self._array[: self._count]
            self._array = grown
        if self._added:
            self._array[self._count : count] = self._added
            self._count = count
            self._added.clear()
        return self._array[:count]


class Ops(Sequence[OpTemplate]):
    """Ops of a table, by their rows."""

    def __init__(self, table: OpTable, rows: Ints) -> None:
        self.table = table
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> OpTemplate: ...
    @overload
    def __getitem__(self, index: slice) -> Ops: ...
    def __getitem__(self, index: int | slice) -> OpTemplate | Ops:
        if isinstance(index, slice):
            return Ops(self.table, self.rows[index])
        return self.table.entered(int(self.rows[index]))

    def __iter__(self) -> Iterator[OpTemplate]:
        return map(self.table.entered, self.rows.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A schedule as arrays. ``ops``: its distinct ops, with signatures as in ``played``;
    ``listed``: the ops of all segments; ``segments``: rows of these; ``parts``: the first segment,
    the end and the count of each. ``numbers``: of the signatures in ``table``, in the order in
    which they are played first; ``times``: how often each is played."""

    table: OpTable
    rows: Ints
    ops: Ints
    refs: Ints
    listed: Ints
    segments: Ints
    parts: tuple[tuple[int, int, int], ...]
    numbers: Ints
    times: Ints

    @cached_property
    def played(self) -> tuple[PlayedSignature, ...]:
        """The signatures, in the order in which they are played first."""
        return tuple(map(self.table.played.__getitem__, self.numbers.tolist()))

    @property
    def counts(self) -> dict[PlayedSignature, int]:
        """How often each signature is played."""
        return dict(zip(self.played, self.times.tolist(), strict=True))

    def op(self, number: int) -> OpTemplate:
        """Return one of the distinct ops."""
        return self.table.entered(int(self.rows[self.listed.tolist().index(number)]))

    def with_refs(self, column: int) -> tuple[Ints, Ints, int]:
        """Return ops, refs and the number of values, without values that do not count: those in
        memory (column ``lives.R_STORAGE``), or on comm lanes (``lives.R_VALUE``)."""
        ops, places = self.ops.copy(), np.full(self.table.values, lives.NOTHING, np.int64)
        most = int((ops[:, lives.O_WRITES_END] - ops[:, lives.O_READS]).sum())
        refs = np.empty((most, lives.REF_COLUMNS), np.int64)
        values = call("pick_refs", ops, self.refs, places, refs, column)
        return ops, refs[: ops[-1, lives.O_WRITES_END] if len(ops) else 0], values

    def layers(self, part: int, ops: Ints, refs: Ints) -> tuple[int, int]:
        """Return the lowest layer that a part can name, and the number of layers from there on."""
        begin, end, _ = self.parts[part]
        found = np.empty(2, np.int64)
        call("span_layers", ops, refs, self.segments[begin:end], found)
        low, high = found.tolist()
        return low, high - low + 1


def listing_of(schedule: Schedule) -> Listing:
    """Return a schedule's listing, which is made once."""
    found = schedule.programs.get(Listing)
    if found is None:
        found = schedule.programs[Listing] = list_ops(table_of(schedule.shared), schedule.parts)
    made: Listing = found
    return made


def table_of(shared: dict[object, Any]) -> OpTable:
    """Return the table that schedules with the same kind of layer share; create it if needed."""
    table: OpTable = shared.get(OpTable) or shared.setdefault(OpTable, OpTable())
    return table


def list_ops(table: OpTable, repeats: Sequence[Repeat]) -> Listing:
    """Return the listing of ops, as rows of ``table``."""
    parts = list[tuple[int, int, int]]()
    rows: list[Ints] = []
    segments: list[tuple[int, ...]] = []
    end = 0
    for part in repeats:
        first = len(segments)
        for one in part.segments:
            rows.append(table.ops(one.templates).rows)
            begin, end = end, end + len(rows[-1])
            segments.append((begin, end, one.count, one.first, one.stride, one.mirror))
        parts.append((first, len(segments), part.count))
    listed = np.concatenate(rows) if rows else np.empty(0, np.int64)
    all_ops, refs = table.tables()
    made = _table(segments, lives.SEGMENT_COLUMNS)
    kinds = len(table.played)
    found = np.empty(len(listed), np.int64), np.empty((len(listed), lives.OP_COLUMNS), np.int64)
    numbers, times, size = (
        np.empty(kinds, np.int64),
        np.empty(kinds, np.int64),
        np.empty(2, np.int64),
    )
    call(
        "list_ops", listed, all_ops, made, _table(parts, 3),
        np.full(len(all_ops), lives.NOTHING, np.int64), np.full(kinds, lives.NOTHING, np.int64),
        *found, numbers, times, size,
    )  # fmt: skip
    distinct, count = size.tolist()
    return Listing(
        table=table, rows=listed, ops=found[1][:distinct], refs=refs, listed=found[0],
        segments=made, parts=tuple(parts), numbers=numbers[:count], times=times[:count],
    )  # fmt: skip


def _table(rows: Sequence[tuple[int, ...]], columns: int) -> Ints:
    return np.array(rows, np.int64).reshape(-1, columns)


# Numbers of signatures on a machine ---------------------------------------------------------------
# Each is looked up when a schedule has it first.
#
# Plans of a case have some hundred signatures together. So a row of numbers is made once for all
# schedules whose ops are in the same table, and a schedule picks its rows.

Make = Callable[[PlayedSignature], Sequence[float]]


class Rows:
    """Rows of numbers of a table's signatures."""

    def __init__(self, table: OpTable, make: Make, columns: int, dtype: type) -> None:
        self._table, self._make = table, make
        self._rows: NDArray[Any] = np.empty((0, columns), dtype)
        self._known = np.empty(0, bool)
        self._filling = Lock()

    def of(self, numbers: Ints) -> NDArray[Any]:
        """Return the rows of signatures by their numbers."""
        with self._filling:
            kinds, (known, columns) = len(self._table.played), self._rows.shape
            if known < kinds:
                rows = np.zeros((2 * kinds, columns), self._rows.dtype)
                rows[:known] = self._rows
                self._rows = rows
                self._known = np.append(self._known, np.zeros(2 * kinds - known, bool))
            for number in numbers[~self._known[numbers]].tolist():
                self._rows[number] = self._make(self._table.played[number])
                self._known[number] = True
            return self._rows[numbers]


def rows_of(
    cost: CostModel, what: object, table: OpTable, make: Make, columns: int, dtype: type = np.int64
) -> Rows:
    """Return the rows of a table's signatures that say ``what`` of them on a machine."""
    found: Rows | None = cost.kept.get((what, table))
    if found is None:
        found = cost.kept[what, table] = Rows(table, make, columns, dtype)
    return found


def durations_of(cost: CostModel, table: OpTable, numbers: Ints) -> Ints:
    """Return the ns of signatures, by their numbers in a table."""

    def made(one: PlayedSignature) -> tuple[int, ...]:
        return (cost.duration_ns(one.signature),)

    return rows_of(cost, durations_of, table, made, 1).of(numbers).ravel()


def timed_row(cost: CostModel, one: PlayedSignature) -> tuple[float, ...]:
    """Return a signature as ``kernels.clocks`` takes it: what determines its time and power at any
    clock, and its kind."""
    if isinstance(one.signature, Fused):
        return 0.0, 0.0, 0.0, 0.0, clocks.FUSED
    return *cost.timed(one.signature), FAMILIES.index(one.signature.kind)


def timed_rows(cost: CostModel, listing: Listing) -> Floats:
    """Return the same of a schedule's signatures."""
    made, columns = partial(timed_row, cost), clocks.TIMED_COLUMNS
    rows = rows_of(cost.at_clock(0), timed_row, listing.table, made, columns, np.float64)
    return rows.of(listing.numbers)


def families_of(cost: CostModel, listing: Listing) -> Ints:
    """Return the numbers of the contention families of a schedule's signatures in its table."""
    table = listing.table

    def made(one: PlayedSignature) -> tuple[int, ...]:
        return (table.family(cost.family(one.signature)),)

    return rows_of(cost, families_of, table, made, 1).of(listing.numbers).ravel()


def compiled_rows(cost: CostModel, listing: Listing) -> Ints:
    """Return a schedule's signatures as ``kernels.compiler`` takes them; families have their
    numbers in the table."""
    table = listing.table
    needed = rows_of(cost, _needs, table, lambda one: (_needs(cost, one),), 1).of(listing.numbers)
    # Only an op whose last wave has room for one of these collectives is two steps.
    least = int(min(needed[needed > 0], default=OPEN))

    def made(one: PlayedSignature) -> tuple[int, ...]:
        return _compiled(cost, one, least)

    columns = compiler.SIGNATURE_COLUMNS
    rows = rows_of(cost, least, table, made, columns).of(listing.numbers)
    rows[:, compiler.N_FAMILY] = families_of(cost, listing)
    return rows


def _needs(cost: CostModel, one: PlayedSignature) -> int:
    if not isinstance(one.signature, Collective) or one.signature.needs_no_room:
        return 0
    return cost.contention.sms_of(cost.family(one.signature))


def _compiled(cost: CostModel, one: PlayedSignature, least: int) -> tuple[int, ...]:
    """Return the row of a signature without its family. ``least``: the fewest SMs that a collective
    of the schedule needs."""
    launch, signature = cost.launch, one.signature
    duration_ns, idle = cost.awake_ns(signature), cost.idle_times(signature)
    launch_ns = launch.of(signature, replayed=one.replayed) if launch.mode != "none" else 0
    inline_ns = launch_ns if launch.mode == "inline" else 0
    if isinstance(signature, Collective):  # an awake lane needs no launch
        idle, inline_ns = idle._replace(wake_ns=idle.wake_ns + inline_ns), 0
    waves, room = room_beside(signature, cost.contention, least)
    time_ns = duration_ns + inline_ns
    return (
        launch_ns, room, _needs(cost, one), time_ns * (waves - 1) // waves > 0, *idle, time_ns,
        launch.stops(signature), 0, one.lane, waves, inline_ns,
    )  # fmt: skip
