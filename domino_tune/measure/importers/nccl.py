"""Output of nccl-tests: text as printed, JSON as written by ``-J``, and transcribed CSV."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from domino_tune.measure.importers.imported import NO_HINTS, Hints, Imported, merged, text_of
from domino_tune.measure.importers.tables import count, microseconds, records
from simulator.errors import InputError, unknown_name
from simulator.lookup.collectives import COLLECTIVES, CollectiveRow

BINARIES = {
    "all_reduce_perf": "all_reduce",
    "all_gather_perf": "all_gather",
    "reduce_scatter_perf": "reduce_scatter",
    "broadcast_perf": "broadcast",
    "sendrecv_perf": "send_recv",
}
# torch runs these in place; gathers and scatters go from one buffer to another.
IN_PLACE = ("all_reduce", "broadcast")
_DEVICE = re.compile(r"#\s+Rank\s+(\d+)\s+Group\s+\d+\s+Pid\s+\d+\s+on\s+(\S+)\s+device")
_STARTING = re.compile(r"Collective test starting:\s*(\S+)")
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

    @property
    def busbw_factor(self) -> float:
        """Return bus bandwidth over algorithm bandwidth (nccl-tests' PERFORMANCE.md)."""
        ranks = self.nodes * self.per_node
        if self.op == "all_reduce":
            return 2 * (ranks - 1) / ranks
        return (ranks - 1) / ranks if self.op in ("all_gather", "reduce_scatter") else 1.0


def nccl_text(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read the table that nccl-tests prints; op and ranks come from the hints, else its header."""
    text = text_of(data)
    hosts = [host for _, host in _DEVICE.findall(text)]
    started = _STARTING.search(text)
    group = _group(started[1] if started else None, hosts, hints)
    rows = [
        _row(group, f"line {number}", size, both, hints) for number, size, both in _text_lines(text)
    ]
    return _imported(rows)


def nccl_json(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read the file that ``-J`` writes; never look at its environment dump."""
    try:
        document = json.loads(text_of(data))
        arguments, config = document["args"], document["config"]
        devices, results = config["devices"], document["results"]
        hosts = [device["hostname"] for device in devices]
        hosts = [h for h in hosts for _ in range(int(config["nthreads"]) * int(config["ngpus"]))]
        group = _group(str(arguments[0]), hosts, hints)
        rows = []
        for index, result in enumerate(results):
            both = [_json_timing(result.get(name)) for name in ("out_of_place", "in_place")]
            rows.append(_row(group, f"results[{index}]", int(result["size"]), both, hints))
    except (json.JSONDecodeError, KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Not a complete nccl-tests JSON file: {error!r}.") from None
    return _imported(rows)


def nccl_table(data: bytes, hints: Hints = NO_HINTS) -> Imported:
    """Read ``size_bytes,time_us_outofplace,time_us_inplace``; a comment has ``ranks=… nodes=…``."""
    text = text_of(data)
    header = re.search(r"op: (\w+).*?ranks=(\d+) nodes=(\d+)", text)
    hosts = [str(rank % int(header[3])) for rank in range(int(header[2]))] if header else []
    group = _group(header[1] if header else None, hosts, hints)
    column = "time_us_inplace" if group.op in IN_PLACE else "time_us_outofplace"
    rows = [
        CollectiveRow(
            op=group.op,  # type: ignore[arg-type]  # checked by _group
            nodes=group.nodes, per_node=group.per_node, ctas=hints.ctas,
            bytes=count(i, row, "size_bytes"), median_us=microseconds(i, row, column),
        )
        for i, row in records(data, ("size_bytes", "time_us_outofplace", "time_us_inplace"))
        if row[column].strip()
    ]  # fmt: skip
    return _imported(rows)


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
        raise InputError("The file names no ranks; pass --group NODESxPER_NODE, e.g. 1x8.")
    if hints.per_node is None and len(hosts) % nodes:
        raise InputError(f"{len(hosts)} ranks on {nodes} hosts: pass --group NODESxPER_NODE.")
    return Group(op=op, nodes=nodes, per_node=per_node)


def _text_lines(text: str) -> Iterator[tuple[int, int, list[Timing | None]]]:
    """Yield (line number, bytes, [out of place, in place]) of each result line."""
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split()
        if not cells or not cells[0].isdigit():
            continue
        if len(cells) < 13:
            raise InputError(f"line {number}: 13 columns expected, got {len(cells)}; truncated?")
        try:
            int(cells[1]), int(cells[4])  # count and root: checks that no column is missing
            both = [_timing(cells[5:9]), _timing(cells[9:13])]
        except ValueError:
            shown = line.strip()
            raise InputError(f"line {number}: not a line of nccl-tests: {shown!r}.") from None
        yield number, int(cells[0]), list(both)


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


def _row(
    group: Group, place: str, size: int, both: list[Timing | None], hints: Hints
) -> CollectiveRow | None:
    """Return the row; None for empty messages. Raise InputError for wrong results or bandwidths."""
    for timing in both:
        if timing is not None:
            _check(group, place, size, timing)
    chosen = both[1] if group.op in IN_PLACE else both[0]
    chosen = chosen or both[0] or both[1]
    if chosen is None:
        raise InputError(f"{place}: no timing.")
    if size == 0:
        return None
    return CollectiveRow(
        op=group.op,  # type: ignore[arg-type]  # checked by _group
        nodes=group.nodes,
        per_node=group.per_node,
        ctas=hints.ctas,
        bytes=size,
        median_us=chosen.time_us,
    )


def _check(group: Group, place: str, size: int, timing: Timing) -> None:
    if timing.wrong > 0:
        raise InputError(
            f"{place}: {timing.wrong:g} wrong elements (#wrong), so the times are not usable. "
            f"Fix the machine and run it again."
        )
    if not (math.isfinite(timing.time_us) and timing.time_us > 0):
        raise InputError(f"{place}: time must be finite and > 0, got {timing.time_us!r}.")
    expected = size / timing.time_us / 1e3 * group.busbw_factor
    if abs(timing.bus_gb_s - expected) > 0.02 + _BUSBW_TOLERANCE * expected:
        raise InputError(
            f"{place}: busbw {timing.bus_gb_s:g} GB/s, but {group.op} of {size} bytes in "
            f"{timing.time_us:g} us on {group.nodes}x{group.per_node} ranks gives {expected:.2f}; "
            f"wrong collective or group? Pass --op and --group."
        )


def _imported(rows: list[CollectiveRow | None] | list[CollectiveRow]) -> Imported:
    found = [row for row in rows if row is not None]
    if not found:
        raise InputError("No timings found; is this nccl-tests output?")
    return Imported(section="collectives", rows=merged(found))
