"""Output of nccl-tests: text as printed, JSON as written by ``-J``, and transcribed CSV."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from domino_tune.measure.importers.imported import (
    MOST_COUNT,
    Found,
    Hints,
    Importer,
    Placed,
    brief,
    lines_of,
    text_of,
)
from domino_tune.measure.importers.tables import count, microseconds, records
from simulator.errors import InputError, unknown_name
from simulator.lookup.collectives import COLLECTIVES, CollectiveRow
from simulator.ops import busbw_factor

BINARIES = {
    "all_reduce_perf": "all_reduce",
    "all_gather_perf": "all_gather",
    "reduce_scatter_perf": "reduce_scatter",
    "broadcast_perf": "broadcast",
    "sendrecv_perf": "send_recv",
}
# torch runs these in place; gathers and scatters go from one buffer to another.
IN_PLACE = ("all_reduce", "broadcast")
_DEVICE = re.compile(r"#\s+Rank\s+\d+\s+Group\s+\d+\s+Pid\s+\d+\s+on\s+(\S+)\s+device")
_STARTING = re.compile(r"Collective test starting:\s*(\S+)")
_HEADER = re.compile(r"#.*\bop: (\w+).*?ranks=(\d+) nodes=(\d+)")
_TABLE = ("size_bytes", "time_us_outofplace", "time_us_inplace")
_MOST_RANKS = 1 << 20
_MOST_HEADER = 500  # characters; the search takes their square
_BUSBW_TOLERANCE = 0.03


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One direction (out of place, or in place) of one size."""

    time_us: float
    alg_gb_s: float
    bus_gb_s: float
    wrong: float


@dataclass(frozen=True, kw_only=True)
class Group:
    """A collective and the shape of its group."""

    op: str
    nodes: int
    per_node: int

    def row(self, size_bytes: int, median_us: float, hints: Hints) -> CollectiveRow:
        """Return the row of one message."""
        return CollectiveRow(
            op=self.op,  # type: ignore[arg-type]  # checked by _group
            nodes=self.nodes, per_node=self.per_node, ctas=hints.ctas,
            bytes=size_bytes, median_us=median_us,
        )  # fmt: skip


def _read_text(data: bytes, hints: Hints) -> Found:
    """Read the table that nccl-tests prints; op and ranks come from the hints, else its header."""
    hosts: list[str] = []
    found: list[tuple[str, int, Both]] = []
    program = None
    for number, line in lines_of(text_of(data)):
        if line.startswith("#"):
            hosts += _DEVICE.findall(line)
            started = _STARTING.search(line)
            program = started[1] if started else program
        elif (timings := _timings(number, line)) is not None:
            found.append((f"line {number}", *timings))
    return _rows(_group(program, hosts, hints), found, hints), ""


def _read_json(data: bytes, hints: Hints) -> Found:
    """Read the file that ``-J`` writes; never look at its environment dump."""
    try:
        document = json.loads(text_of(data))
        arguments, config = document["args"], document["config"]
        hosts = [device["hostname"] for device in config["devices"]]
        each = int(config["nthreads"]) * int(config["ngpus"])
        if not 1 <= each * len(hosts) <= _MOST_RANKS:
            raise InputError(f"The file names {each} ranks on each of {len(hosts)} devices.")
        group = _group(str(arguments[0]), [host for host in hosts for _ in range(each)], hints)
        found = [
            (
                f"results[{index}]",
                int(result["size"]),
                [_json_timing(result.get(name)) for name in ("out_of_place", "in_place")],
            )
            for index, result in enumerate(document["results"])
        ]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Not a complete nccl-tests JSON file: {brief(repr(error))}.") from None
    except RecursionError:
        raise InputError("Not a complete nccl-tests JSON file: nested too deeply.") from None
    return _rows(group, found, hints), ""


def _read_table(data: bytes, hints: Hints) -> Found:
    """Read ``size_bytes,time_us_outofplace,time_us_inplace``; a comment has ``ranks=… nodes=…``."""
    lines = (line[:_MOST_HEADER] for _, line in lines_of(text_of(data)) if line[:1] == "#")
    header = next(filter(None, map(_HEADER.match, lines)), None)
    ranks, nodes = (int(header[2]), int(header[3])) if header else (0, 1)
    if header and not 1 <= nodes <= ranks <= _MOST_RANKS:
        raise InputError(f"The header names {brief(header[2])} ranks on {brief(header[3])} nodes.")
    hosts = [str(rank % nodes) for rank in range(ranks)]
    group = _group(header[1] if header else None, hosts, hints)
    column = _TABLE[2] if group.op in IN_PLACE else _TABLE[1]
    return [
        (
            f"line {i}",
            group.row(count(i, row, "size_bytes"), microseconds(i, row, column), hints),
        )
        for i, row in records(data, _TABLE)
        if row[column].strip()
    ], ""


nccl_text = Importer(
    section="collectives",
    read=_read_text,
    about="Output of nccl-tests as printed; gives collective and ranks itself.",
)
nccl_json = Importer(
    section="collectives",
    read=_read_json,
    about="The file that nccl-tests writes with -J; its environment dump is not read.",
)
nccl_table = Importer(
    section="collectives",
    read=_read_table,
    columns=_TABLE,
    about="Output of nccl-tests as CSV; a comment says `op: NAME … ranks=N nodes=N`. Times of "
    f"{' and '.join(IN_PLACE)} are in {_TABLE[2]}, of other collectives in {_TABLE[1]}.",
)


def _group(program: str | None, hosts: list[str], hints: Hints) -> Group:
    """Return the group: by the hints, else by the file."""
    name = PurePosixPath(program).name if program else None
    op = hints.op or (BINARIES.get(name, name) if name else None)
    if op is None:
        raise InputError("The file does not say which collective it timed; pass --op all_reduce.")
    if op not in COLLECTIVES:
        raise unknown_name("collective", op, COLLECTIVES)
    nodes = hints.nodes or (len(set(hosts)) or None)
    per_node = hints.per_node or (len(hosts) // nodes if nodes and hosts else None)
    if nodes is None or per_node is None:
        raise InputError(
            "The file names no ranks; pass --nodes and --ranks-per-node, e.g. --nodes 1 "
            "--ranks-per-node 8."
        )
    if hints.per_node is None and len(hosts) % nodes:
        raise InputError(
            f"{len(hosts)} ranks do not spread evenly over {nodes} nodes; pass --nodes and "
            "--ranks-per-node."
        )
    return Group(op=op, nodes=nodes, per_node=per_node)


Both = list["Timing | None"]
"""Timings out of place and in place."""


def _timings(number: int, line: str) -> tuple[int, Both] | None:
    """Return (bytes, timings) of a result line; None for another line."""
    cells = line.split()
    if not cells or not cells[0].isdigit():
        return None
    if len(cells) < 13:
        raise InputError(f"line {number}: 13 columns expected, got {len(cells)}; truncated?")
    try:
        int(cells[1]), int(cells[4])  # count and root: checks that no column is missing
        return int(cells[0]), [_timing(cells[5:9]), _timing(cells[9:13])]
    except ValueError:
        shown = brief(line.strip())
        raise InputError(f"line {number}: not a line of nccl-tests: {shown}.") from None


def _timing(cells: list[str]) -> Timing:
    time_us, alg, bus = (float(cell) for cell in cells[:3])
    wrong = 0.0 if cells[3] == "N/A" else float(cells[3])
    return Timing(time_us=time_us, alg_gb_s=alg, bus_gb_s=bus, wrong=wrong)


def _json_timing(value: Any) -> Timing | None:
    if value is None:
        return None
    if "time" not in value:
        raise InputError("nccl-tests timed the CPU (-C); run it without -C to time the collective.")
    wrong = value["nwrong"]
    return Timing(
        time_us=float(value["time"]),
        alg_gb_s=float(value["alg_bw"]),
        bus_gb_s=float(value["bus_bw"]),
        wrong=0.0 if wrong is None else float(wrong),
    )


def _rows(group: Group, found: Iterable[tuple[str, int, Both]], hints: Hints) -> Placed:
    """Return a row of each message that is not empty.

    Raise InputError for wrong results and bandwidths that do not follow from the times.
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


def _check(group: Group, place: str, size: int, timing: Timing) -> None:
    if timing.wrong > 0:
        raise InputError(
            f"{place}: {timing.wrong:g} wrong elements (#wrong), so the times are not usable. "
            f"Fix the machine and run it again."
        )
    if not (math.isfinite(timing.time_us) and timing.time_us > 0):
        raise InputError(f"{place}: time must be finite and > 0, got {timing.time_us!r}.")
    expected = size / timing.time_us / 1e3 * busbw_factor(group.op, group.nodes * group.per_node)
    if abs(timing.bus_gb_s - expected) > 0.02 + _BUSBW_TOLERANCE * expected:
        raise InputError(
            f"{place}: busbw {timing.bus_gb_s:g} GB/s, but {group.op} of {size} bytes in "
            f"{timing.time_us:g} us on {group.nodes}x{group.per_node} ranks gives {expected:.2f}; "
            f"wrong collective or group? Pass --op, --nodes and "
            "--ranks-per-node."
        )
