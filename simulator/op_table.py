"""Ops as rows of numbers: what kernels know of a schedule.

Op templates that plans share are entered once, for all schedules of a kind of layer; a schedule is
a list of their rows. Values, the memory that they are in, and signatures are numbers here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simulator.kernels import lives
from simulator.kernels.load import call
from simulator.ops import Signature
from simulator.recomputation import RECOMPUTED_SUFFIX
from simulator.schedule import STEP, OpTemplate, Ref, Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

IN_PLACE: Final = (".ar", ".rope", ".qk_norm", ".own")
"""Ends of the names of values that are in their predecessor's memory, or it in theirs."""
LOGITS: Final = (".logits", ".uncapped")
"""Ends of the names of logits."""


class Played(NamedTuple):
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
    signatures' numbers."""

    def __init__(self) -> None:
        self.played: list[Played] = []
        self._played: dict[Played, int] = {}
        self._values: dict[str, _Value] = {}
        self._rows: dict[int, int] = {}
        self._entered: list[OpTemplate] = []  # which keeps their ids
        self._ops: list[tuple[int, ...]] = []
        self._refs: list[tuple[int, ...]] = []
        self._made = _table((), lives.OP_COLUMNS), _table((), lives.REF_COLUMNS)
        self._entering = Lock()

    @property
    def values(self) -> int:
        """The number of values that are known."""
        return len(self._values)

    def rows(self, templates: Sequence[OpTemplate]) -> list[int]:
        """Return the rows of ops; new ones are entered."""
        rows, ids = self._rows, list(map(id, templates))
        if not rows.keys() >= set(ids):
            with self._entering:
                for template in templates:
                    if id(template) not in rows:
                        self._enter(template)
        return [rows[one] for one in ids]

    def entered(self, rows: Iterable[int]) -> tuple[OpTemplate, ...]:
        """Return the ops of rows."""
        return tuple(self._entered[row] for row in rows)

    def tables(self) -> tuple[Ints, Ints]:
        """Return the ops and the values that they read and write, as ``kernels.lives`` says."""
        with self._entering:
            ops, refs = self._made
            if len(ops) < len(self._ops):
                ops = np.concatenate((ops, _table(self._ops[len(ops) :], lives.OP_COLUMNS)))
                refs = np.concatenate((refs, _table(self._refs[len(refs) :], lives.REF_COLUMNS)))
                self._made = ops, refs
            return ops, refs

    def _enter(self, template: OpTemplate) -> None:
        role = template.role
        played = Played(template.signature, template.lane, role.startswith(STEP), template.replayed)
        number = self._played.setdefault(played, len(self.played))
        if number == len(self.played):
            self.played.append(played)
        begin = len(self._refs)
        self._refs += [self._ref(ref, 0) for ref in template.reads]
        reads_end = len(self._refs)
        sizes = template.sizes or (0,) * len(template.writes)
        self._refs += map(self._ref, template.writes, sizes)
        mark = lives.SUMS if role == "loss.sum" else 0
        mark = lives.RECOMPUTES if RECOMPUTED_SUFFIX in role else mark
        mark = lives.UPDATES if played.in_step else mark
        self._entered.append(template)
        self._ops.append((
            template.lane, number, template.offset, begin, reads_end, reads_end, len(self._refs),
            mark,
        ))  # fmt: skip
        self._rows[id(template)] = len(self._ops) - 1

    def _ref(self, ref: Ref, size: int) -> tuple[int, ...]:
        value = self._values.get(ref.name) or self._value(ref.name)
        return value.number, ref.layer, value.storage, size, size * value.is_logits

    def _value(self, name: str) -> _Value:
        storage = _storage(name)
        number = len(self._values)
        if storage != name:
            number = (self._values.get(storage) or self._value(storage)).number
        found = _Value(len(self._values), number, name.endswith(LOGITS))
        self._values[name] = found
        return found


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A schedule as arrays. ``ops``: its distinct ops, with signatures as in ``played``;
    ``listed``: the ops of all segments; ``segments``: rows of these; ``parts``: the first segment,
    the end and the count of each; ``counts``: how often each signature is played. ``values``: more
    than the numbers of all values."""

    ops: Ints
    refs: Ints
    listed: Ints
    segments: Ints
    parts: tuple[tuple[int, int, int], ...]
    templates: tuple[OpTemplate, ...]
    counts: dict[Played, int]
    values: int

    @property
    def played(self) -> tuple[Played, ...]:
        """The signatures, in the order in which they are played first."""
        return tuple(self.counts)

    def with_refs(self, column: int) -> tuple[Ints, Ints, int]:
        """Return ops, refs and the number of values, without values that do not count: those in
        memory (column ``lives.R_STORAGE``), or on comm lanes (``lives.R_VALUE``)."""
        ops, places = self.ops.copy(), np.full(self.values, lives.NOTHING, np.int64)
        most = int((ops[:, lives.O_WRITES_END] - ops[:, lives.O_READS]).sum())
        refs = np.empty((most, lives.REF_COLUMNS), np.int64)
        values = call("pick_refs", ops, self.refs, places, refs, column)
        return ops, refs[: ops[-1, lives.O_WRITES_END] if len(ops) else 0], values

    def layers(self, part: int, ops: Ints, refs: Ints) -> tuple[int, int]:
        """Return the lowest layer that a part can name, and the number of layers from there on."""
        begin, end, _ = self.parts[part]
        rows = self.segments[begin:end]
        last = rows[:, lives.G_FIRST] + (rows[:, lives.G_COUNT] - 1) * rows[:, lives.G_STRIDE]
        ends = np.concatenate((rows[:, lives.G_FIRST], last))
        mirrors = np.concatenate((rows[:, lives.G_MIRROR], rows[:, lives.G_MIRROR]))
        ends = np.where(mirrors < 0, ends, mirrors - ends)
        far = int(np.abs(ops[:, lives.O_OFFSET]).max(initial=0))
        far += int(np.abs(refs[:, lives.R_LAYER]).max(initial=0))
        low, high = (int(ends.min()), int(ends.max())) if len(ends) else (0, 0)
        return low - far, high - low + 2 * far + 1


def listing_of(schedule: Schedule) -> Listing:
    """Return a schedule's listing, which is made once."""
    found = schedule.programs.get(Listing)
    if found is None:
        found = schedule.programs[Listing] = _list(schedule)
    made: Listing = found
    return made


def table_of(shared: dict[object, object]) -> OpTable:
    """Return the table that schedules with the same kind of layer share; create it if needed."""
    table = shared.get(OpTable)
    if table is None:
        table = shared.setdefault(OpTable, OpTable())
    assert isinstance(table, OpTable)
    return table


def _list(schedule: Schedule) -> Listing:
    table, parts, times = table_of(schedule.shared), [], []
    rows: list[int] = []
    segments: list[tuple[int, ...]] = []
    for part in schedule.parts:
        first = len(segments)
        for one in part.segments:
            begin = len(rows)
            rows += table.rows(one.templates)
            segments.append((begin, len(rows), one.count, one.first, one.stride, one.mirror))
            times.append(part.count * one.count)
        parts.append((first, len(segments), part.count))
    distinct, firsts, listed = np.unique(
        np.array(rows, np.int64), return_index=True, return_inverse=True
    )
    all_ops, refs = table.tables()
    ops = all_ops[distinct]
    played = list(dict.fromkeys(ops[np.argsort(firsts), lives.O_SIGNATURE].tolist()))
    places = np.zeros(len(table.played), np.int64)
    places[played] = range(len(played))
    ops[:, lives.O_SIGNATURE] = places[ops[:, lives.O_SIGNATURE]]
    made = _table(segments, lives.SEGMENT_COLUMNS)
    repeats = np.repeat(np.array(times, np.int64), made[:, lives.G_OPS_END] - made[:, lives.G_OPS])
    counts = np.zeros(len(played), np.int64)
    np.add.at(counts, ops[listed, lives.O_SIGNATURE], repeats)
    return Listing(
        ops=ops, refs=refs, listed=listed.astype(np.int64, copy=False), segments=made,
        parts=tuple(parts), templates=table.entered(distinct.tolist()),
        counts={
            table.played[one]: count for one, count in zip(played, counts.tolist(), strict=True)
        },
        values=table.values,
    )  # fmt: skip


@lru_cache(maxsize=1 << 14)
def _storage(name: str) -> str:
    """Return the value whose memory ``name`` uses: in-place results end as IN_PLACE says.

    Gradients of logits overwrite them.
    """
    if name.startswith("d.") and name.endswith(LOGITS):
        name = f"{name[2:].rpartition('.')[0]}.logits"
    while name.endswith(IN_PLACE):
        name = name.rpartition(".")[0]
    return name


def _table(rows: Iterable[tuple[int, ...]], columns: int) -> Ints:
    return np.array(list(rows), np.int64).reshape(-1, columns)
