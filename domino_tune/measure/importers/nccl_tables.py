"""What all forms of nccl-tests' output share, and the tables that its versions print.

A log may have several tables: of one collective or several, on the same ranks or others. Columns
are read by name, since versions differ: ``#wrong`` counts elements; ``error`` and ``res`` are the
largest deviation; root and redop may be missing; the first version printed milliseconds.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from domino_tune.measure.importers.imported import MOST_COUNT, Hints, Placed, brief
from domino_tune.store.formats.launcher_marks import Line, by_rank
from simulator.errors import InputError, unknown_name
from simulator.lookup.collective_law import COLLECTIVES
from simulator.lookup.collectives import CollectiveRow
from simulator.ops import busbw_factor

# What all forms of nccl-tests' output share -------------------------------------------------------
# A collective, the group that ran it, its timings.

BINARIES: Final = {
    "all_reduce_perf": "all_reduce",
    "all_gather_perf": "all_gather",
    "reduce_scatter_perf": "reduce_scatter",
    "broadcast_perf": "broadcast",
    "sendrecv_perf": "send_recv",
    "alltoall_perf": "all_to_all",
}
OTHERS: Final = ("gather_perf", "hypercube_perf", "reduce_perf", "scatter_perf")
"""Programs of nccl-tests whose collectives no prediction needs."""
# torch runs these in place, but gathers and scatters from one buffer to another.
IN_PLACE: Final = ("all_reduce", "broadcast")
_BUSBW_TOLERANCE: Final = 0.03


@dataclass(frozen=True, kw_only=True)
class NcclTiming:
    """One direction (out of place, or in place) of one size. ``wrong``: number of wrong elements;
    ``deviation``: the largest one; older versions of nccl-tests allow up to ``allowed``."""

    time_us: float
    bus_gb_s: float
    wrong: float = 0.0
    deviation: float = 0.0
    allowed: float = math.inf


Both = tuple[NcclTiming | None, NcclTiming | None]
"""Timings out of place and in place."""
Result = tuple[str, int, Both]
"""Place in the file, bytes, timings."""


@dataclass(frozen=True, kw_only=True)
class MeasuredGroup:
    """A collective and the shape of its group."""

    op: str
    nodes: int
    per_node: int

    @property
    def label(self) -> str:
        """The collective and the shape: ``all_reduce on 2x8``."""
        return f"{self.op} on {self.nodes}x{self.per_node}"

    def row(self, size_bytes: int, median_us: float, hints: Hints) -> CollectiveRow:
        """Return the row of one message."""
        return CollectiveRow(
            op=self.op,  # type: ignore[arg-type]  # checked by group_of
            nodes=self.nodes, per_node=self.per_node, ctas=hints.ctas,
            bytes=size_bytes, median_us=median_us,
        )  # fmt: skip


def program_name(program: str) -> str:
    """Return the name of a program without its folder and the suffix of some builds (``_mpi``)."""
    return PurePosixPath(program).name.removesuffix("_mpi")


def group_of(program: str | None, hosts: Sequence[str], hints: Hints) -> MeasuredGroup:
    """Return the group, by the hints, else by the file, whose ranks run on ``hosts``.

    Raise InputError if neither determines it, or if they contradict each other.
    """
    op = _op(program, hints)
    nodes, per_node = _shape(hosts, hints)
    return MeasuredGroup(op=op, nodes=nodes, per_node=per_node)


def _op(program: str | None, hints: Hints) -> str:
    name = program_name(program) if program else None
    told = BINARIES.get(name, name) if name else None
    op = hints.op or told
    if op is None:
        raise InputError("The file does not say which collective it timed; pass --op all_reduce.")
    if op not in COLLECTIVES:
        raise unknown_name("collective", op, COLLECTIVES)
    if op != told and (told in COLLECTIVES or name in OTHERS):
        raise InputError(f"The file says {name}, but --op says {op}; leave --op out.")
    return op


def _shape(hosts: Sequence[str], hints: Hints) -> tuple[int, int]:
    """Return the number of nodes and of ranks on each."""
    nodes = hints.nodes or (len(set(hosts)) or None)
    per_node = hints.per_node or (len(hosts) // nodes if nodes and hosts else None)
    if nodes is None or per_node is None:
        raise InputError(
            "The file names no ranks; pass --nodes and --ranks-per-node, e.g. --nodes 1 "
            "--ranks-per-node 8."
        )
    on_each, given = Counter(hosts), hints.nodes is not None and hints.per_node is not None
    if not given and len({*on_each.values()}) > 1:
        told = ", ".join(f"{host} has {ranks}" for host, ranks in on_each.most_common())
        raise InputError(
            f"Ranks are not the same number on each node ({brief(told)}), and only groups are read "
            "that have as many on each; run nccl-tests with the same number on each node, or pass "
            "--nodes and --ranks-per-node if hosts are named in another way."
        )
    names = len(on_each)  # nodes of one name, or several names a node: pods, NVLink domains
    if hosts and (nodes * per_node != len(hosts) or (names > 1 and names % nodes)):
        raise InputError(
            f"The file names {len(hosts)} ranks on {len(set(hosts))} nodes, which {nodes}x"
            f"{per_node} are not; correct --nodes and --ranks-per-node, or leave them out."
        )
    return nodes, per_node


def rows_of(group: MeasuredGroup, found: Iterable[Result], hints: Hints) -> Placed:
    """Return a row for each message that is not empty.

    Raise InputError for wrong results and for bandwidths that do not follow from the times.
    """
    rows = []
    for place, size, both in found:
        if not 0 <= size <= MOST_COUNT:
            raise InputError(f"{place}: size must be from 0 to {MOST_COUNT:g} bytes.")
        for timing in both:
            if timing is not None:
                _check(group, place, size, timing)
        chosen = both[1] if group.op in IN_PLACE else both[0]
        chosen = chosen or both[0] or both[1]
        if chosen is None:
            raise InputError(f"{place}: no timing.")
        if size > 0:
            rows.append((place, group.row(size, chosen.time_us, hints)))
    return rows


def _check(group: MeasuredGroup, place: str, size: int, timing: NcclTiming) -> None:
    if timing.wrong > 0:
        raise InputError(
            f"{place}: {timing.wrong:g} wrong elements (#wrong), so the times are not usable. "
            "Fix the machine and run it again."
        )
    if timing.deviation > timing.allowed:
        raise InputError(
            f"{place}: results deviate by {timing.deviation:g}, of which {timing.allowed:g} is "
            "rounding, so the times are not usable. Fix the machine and run it again."
        )
    if not (math.isfinite(timing.time_us) and timing.time_us > 0):
        raise InputError(f"{place}: time must be finite and > 0, got {timing.time_us!r}.")
    ranks = group.nodes * group.per_node
    expected = size / timing.time_us / 1e3 * busbw_factor(group.op, ranks)
    if not abs(timing.bus_gb_s - expected) <= 0.02 + _BUSBW_TOLERANCE * expected:  # or NaN
        raise InputError(
            f"{place}: busbw {timing.bus_gb_s:g} GB/s, but {group.op} of {size} bytes in "
            f"{timing.time_us:g} us on {group.nodes}x{group.per_node} ranks gives {expected:.2f}; "
            "wrong collective or group? Pass --op, --nodes and --ranks-per-node."
        )


# Tables that all versions of nccl-tests print, each with its own ranks and columns ----------------

RANK: Final = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device"
    r"(\s+\d+(?:\s+\[[^\]]*\])?)?(?: +(\S.*))?"
)
_STARTING: Final = re.compile(r"Collective test starting:\s*(\S+)")
_SETTINGS: Final = re.compile(r"#?\s*(?:nThread\s+\d|nccl-tests version|Using devices)")
_OUT_OF_BOUNDS: Final = re.compile(r"#?\s*Out of bounds values\s*:\s*(\d+)")
_USUAL: Final = (
    "size", "count", "type", "redop", "root", *2 * ("time", "algbw", "busbw", "#wrong"),
)  # fmt: skip
"""Columns of a table whose header was cut off."""
_CPU_TIME: Final = "cputime"
_STAMP: Final = "timestamp"
_UNIT_US: Final = {"(us)": 1.0, "(ms)": 1e3, "(s)": 1e6}
_FIRST_VERSION: Final = "bytes"
"""Name of the first column if times are in milliseconds and no line gives units."""
DEVIATIONS: Final = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}
"""Type -> the largest deviation that older versions accept; whole numbers must be exact."""
REDUCES: Final = ("all_reduce", "reduce_scatter")
EITHER: Final = ("send_recv",)
"""Collectives for which some versions print a redop and others do not."""
ROOTED: Final = ("broadcast",)
MOST_COLUMNS: Final = 40


def hosts_of(ranks: Iterable[tuple[Hashable, str]], groups_there: str) -> list[str]:
    """Return the host of each rank of the first group, of groups and hosts of all ranks. Raise
    InputError, which begins with ``groups_there``, if the groups differ in shape."""
    groups: dict[Hashable, list[str]] = {}
    for group, host in ranks:
        groups.setdefault(group, []).append(host)
    if len({(len(hosts), len(set(hosts))) for hosts in groups.values()}) > 1:
        raise InputError(
            f"{groups_there} have several shapes; run nccl-tests without "
            "NCCL_TESTS_SPLIT, or with groups of one shape."
        )
    return next(iter(groups.values()), [])


def check_bounds(place: str, count: int | str) -> None:
    """Raise InputError where nccl-tests counted values out of bounds."""
    if int(count):
        raise InputError(
            f"{place}: {count} values out of bounds, so the times are not usable. Fix the machine "
            "and run it again."
        )


class SizeSweep(NamedTuple):
    """Rising sizes with the same type, redop and root (``kind``)."""

    kind: tuple[str, ...]
    sizes: list[int]


@dataclass(kw_only=True)
class NcclTable:
    """Results of one collective on one group. ``ranks``: rank -> (group, host, device)."""

    program: str | None = None
    ranks: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    gpus: set[str] = field(default_factory=set)
    columns: tuple[str, ...] = ()
    unit_us: float | None = None
    results: list[Result] = field(default_factory=list)
    kinds: set[tuple[str, str]] = field(default_factory=set)
    sweeps: list[SizeSweep] = field(default_factory=list)
    mixed: bool = False
    ended: bool = False

    @property
    def place(self) -> str:
        """The lines of its results."""
        if not self.results:
            return "The file"
        first, last = (self.results[end][0].removeprefix("line ") for end in (0, -1))
        return f"lines {first} to {last}"

    @property
    def hosts(self) -> list[str]:
        """The host of each rank of a group; of the first group if several run side by side.

        Raise InputError if the groups differ in shape.
        """
        ranks = ((group, host) for group, host, _ in self.ranks.values())
        return hosts_of(ranks, f"{self.place}: the groups of this table")

    def check_hosts(self) -> None:
        """Raise InputError if ranks that name one host have its devices several times over: nodes
        of one name, such as containers."""
        groups = {group for group, _, _ in self.ranks.values()}
        devices = Counter(device for _, _, device in self.ranks.values())
        hosts = {host for _, host, _ in self.ranks.values()}
        if len(hosts) == len(groups) == 1 < len(devices) and min(devices.values()) > 1:
            raise InputError(
                f"{self.place}: all ranks are on {brief(next(iter(hosts)))}, but each of "
                f"{len(devices)} devices is there {min(devices.values())} times: nodes of one "
                "name, or several ranks a GPU? Pass --nodes and --ranks-per-node."
            )

    def check_stream(self) -> None:
        """Raise InputError if lines are not in the order in which one process prints them: ranks in
        turn, then one sweep after another (``-N`` repeats it), then the sums."""
        first: dict[tuple[str, ...], list[int]] = {}
        for one in self.sweeps:
            whole = first.setdefault(one.kind, one.sizes)
            broke_off = one is self.sweeps[-1] and one.sizes == whole[: len(one.sizes)]
            self.mixed |= one.sizes != whole and not broke_off
        if self.mixed:
            raise InputError(
                f"{self.place}: the lines of several runs stand mixed in one table, and nothing "
                "tells which are of which. Give each run a file of its own, or have the launcher "
                "mark its ranks (mpirun --tag-output, srun --label)."
            )

    def add(self, result: Result, kind: tuple[str, ...]) -> None:
        """Add a line of results with the type, redop and root of ``kind``."""
        self.mixed |= self.ended
        size, sweep = result[1], self.sweeps[-1] if self.sweeps else None
        if sweep is None or kind != sweep.kind or size <= sweep.sizes[-1]:
            self.sweeps.append(SizeSweep(kind, [size]))
        else:
            sweep.sizes.append(size)
        self.results.append(result)

    def check_op(self, op: str) -> None:
        """Raise InputError if the columns redop and root say that ``op`` was not timed."""
        for redop, root in self.kinds:
            reduces = redop not in ("", "none")
            other = reduces != (op in REDUCES) and op not in EITHER
            if other or (root.isdigit() and (reduces or op not in ROOTED)):
                raise InputError(
                    f"{self.place}: rows with redop {redop or 'not given'} and root "
                    f"{root or 'not given'} are not of {op}; correct --op. Import a log of several "
                    "collectives as several files."
                )


def tables_of(lines: Sequence[Line]) -> list[NcclTable]:
    """Return the tables of a log, by rank if several ranks printed some. If no table has results,
    return the first one, which holds what the log says about the run."""
    found = [table for rank in by_rank(lines, _tells) for table in _tables(rank)]
    return [table for table in found if table.results] or found[:1]


def _tells(text: str) -> bool:
    """Return whether a line may belong to a table."""
    cells = text.split(maxsplit=2)
    return text.lstrip().startswith("#") or (len(cells) == 3 and cells[0].isdigit())


def _tables(lines: Sequence[Line]) -> Iterator[NcclTable]:
    table = NcclTable()
    for line in lines:
        text = line.text.strip()
        header = _columns(text)
        if table.results and (header or _begins(text)):
            yield table
            # A header alone is a further table of the same ranks; any other line starts another
            # job.
            same = NcclTable(program=table.program, ranks=dict(table.ranks))
            table = same if header else NcclTable()
        if header:
            table.columns = header
        elif wrong := _OUT_OF_BOUNDS.match(text):
            check_bounds(f"line {line.number}", wrong[1][:9])
            table.ended = True
        elif text.startswith("#"):
            _note(table, text)
        elif _is_result(table, text):
            table.add(*_result(table, line.number, text))
    yield table


def _begins(text: str) -> bool:
    """Return whether a line belongs to the text that is printed before a table."""
    return bool(_SETTINGS.match(text) or RANK.match(text) or _STARTING.search(text))


def _columns(text: str) -> tuple[str, ...]:
    """Return the column names of a header, or () for any other line."""
    if not text.startswith("#"):
        return ()
    names = text[1:].split(maxsplit=MOST_COLUMNS)
    if _CPU_TIME in names:
        raise InputError("nccl-tests timed the CPU (-C); run it without -C to time the collective.")
    if names[:1] not in (["size"], [_FIRST_VERSION]) or "time" not in names:
        return ()
    if names.count("time") == 1:  # the names for both directions, printed once
        names += names[names.index("time") :]
    return tuple(names)


def _note(table: NcclTable, text: str) -> None:
    """Record what a remark says about the table."""
    if rank := RANK.match(text):
        number = int(rank[1][:9])
        if number == 0:  # earlier ranks belong to a run that ended before it printed results
            table.ranks = {}
        table.mixed |= number != len(table.ranks)
        table.ranks[number] = (rank[2] or "", rank[3], rank[4] or "")
        table.gpus |= {rank[5].strip()} if rank[5] else set()
    elif started := _STARTING.search(text):
        table.program = started[1]
    elif units := [_UNIT_US[cell] for cell in text.split() if cell in _UNIT_US]:
        table.unit_us = units[0]


def _is_result(table: NcclTable, text: str) -> bool:
    """Return whether a line begins like a result: with two whole numbers, or with one below a
    header if the line was cut off."""
    cells = text.split(maxsplit=2)
    if not cells or not cells[0].isdigit():
        return False
    if len(cells) == 1:
        return bool(table.columns) and not table.ended
    return cells[1].isdigit()


def _result(table: NcclTable, number: int, text: str) -> tuple[Result, tuple[str, ...]]:
    """Return a line of results, and its type, redop and root; raise InputError if the line is cut
    off or is not a result."""
    columns, cells = table.columns or _USUAL, text.split()
    if columns[-1] == _STAMP and len(cells) == len(columns) + 1:  # a date and a time
        columns, cells = columns[:-1], cells[:-2]
    if len(cells) < len(columns):
        raise InputError(
            f"line {number}: {len(columns)} columns expected, got {len(cells)}; truncated?"
        )
    if len(cells) > len(columns):
        raise InputError(f"line {number}: not a line of nccl-tests: {brief(text)}.")
    named = dict(zip(columns, cells, strict=True))
    first = columns.index("time")
    second = columns.index("time", first + 1)
    try:
        int(cells[1])
        both: Both = (
            _timing(table, named.get("type", ""), columns[first:second], cells[first:second]),
            _timing(table, named.get("type", ""), columns[second:], cells[second:]),
        )
        result = f"line {number}", int(cells[0]), both
    except ValueError:
        raise InputError(f"line {number}: not a line of nccl-tests: {brief(text)}.") from None
    ways = named.get("redop", named.get("op", "")), named.get("root", "")
    table.kinds.add(ways)
    return result, (named.get("type", ""), *ways)


def _timing(
    table: NcclTable, dtype: str, columns: Sequence[str], texts: Sequence[str]
) -> NcclTiming | None:
    cells = dict(zip(columns, texts, strict=True))
    if cells["time"] == "N/A":  # the collective does not run in place
        return None
    usual_us = 1e3 if table.columns[:1] == (_FIRST_VERSION,) else 1.0
    wrong = cells.get("#wrong", "N/A")
    deviation = cells.get("error", cells.get("res", "N/A"))
    return NcclTiming(
        time_us=float(cells["time"]) * (table.unit_us or usual_us),
        bus_gb_s=float(cells["busbw"]) if "busbw" in cells else math.nan,
        wrong=0.0 if wrong == "N/A" else float(wrong),
        deviation=0.0 if deviation == "N/A" else float(deviation),
        allowed=DEVIATIONS.get(dtype, 0.0) if deviation != "N/A" else math.inf,
    )
