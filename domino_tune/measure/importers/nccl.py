"""Output of nccl-tests: text as printed, JSON as written by ``-J``, and transcribed CSV."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from domino_tune.measure.importers.imported import Found, Hints, Importer, brief, lines_of, text_of
from domino_tune.measure.importers.nccl_tables import (
    IN_PLACE,
    OTHERS,
    RANK,
    MeasuredGroup,
    NcclTable,
    NcclTiming,
    check_bounds,
    group_of,
    hosts_of,
    program_name,
    rows_of,
    tables_of,
)
from domino_tune.measure.importers.tables import count, microseconds, records
from domino_tune.store.formats.launcher_marks import Line, unknown_mark, unmarked
from simulator.errors import InputError
from simulator.profile import Machine

_HEADER = re.compile(r"#.*\bop: (\w+).*?ranks=(\d+) nodes=(\d+)")
_TABLE = ("size_bytes", "time_us_outofplace", "time_us_inplace")
_GPU = re.compile(r"\b(?:G?[BH]|[ALTV])[0-9]{1,3}[A-Z]?\b|\bRTX [A-Z]?[0-9]+|\bMI[0-9]{3}[A-Z]?\b")
"""Kinds of GPUs, as their names have them: H100, GB200, MI300."""
_MOST_RANKS = 1 << 20
_MOST_HEADER = 500  # characters; the search takes their square
_CONTENT = re.compile(rf"{RANK.pattern}|# nThread |# +(?:size|bytes) +(?:count|N) ")
"""What tells a line of nccl-tests, wherever it stands."""


def _read_text(data: bytes, hints: Hints) -> Found:
    """Read the tables that nccl-tests prints; op and ranks come from the hints, else from each."""
    lines = unmarked(lines_of(text_of(data)))
    tables = tables_of(lines)
    if not tables[0].results:
        _refuse_unknown_mark(lines)
    used = [table for table in tables if not _is_other(table)] or tables
    rows: list[tuple[str, Any]] = []
    labels = Counter[str]()
    for table in tables:
        table.check_stream()
    for table in used:
        group = _table_group(table, hints)
        rows += rows_of(group, table.results, hints)
        labels[group.label] += 1
    rows.sort(key=lambda row: int(row[0].removeprefix("line ")))
    notes = (_tables_note(tables, used, labels), _gpu_note(used, hints.machine))
    return rows, "; ".join(filter(None, notes))


def _is_other(table: NcclTable) -> bool:
    return table.program is not None and program_name(table.program) in OTHERS


def _table_group(table: NcclTable, hints: Hints) -> MeasuredGroup:
    hosts = table.hosts
    if hints.nodes is None and hints.per_node is None:
        table.check_hosts()
    group = group_of(table.program, hosts, hints)
    if table.program is None:
        table.check_op(group.op)
    if len(hosts) == 1:
        raise InputError(
            f"{table.place}: the table is of one rank, which exchanges nothing with others. Build "
            "nccl-tests with MPI=1, so that its ranks are one group."
        )
    return group


def _tables_note(
    tables: Sequence[NcclTable], used: Sequence[NcclTable], labels: Counter[str]
) -> str:
    """Return what the tables are, where there are several."""
    if len(tables) == 1:
        return ""
    told = ", ".join(
        f"{label} ({times} times)" if times > 1 else label for label, times in labels.items()
    )
    left = ", ".join(dict.fromkeys(str(table.program) for table in tables if table not in used))
    return f"{len(tables)} tables: {told}" + (f"; left out: {left}" if left else "")


def _gpu_note(used: Sequence[NcclTable], machine: Machine | None) -> str:
    """Return whose GPUs timed the tables, where they are of another kind than the machine's."""
    names = sorted({name for table in used for name in table.gpus})
    ours = _GPU.findall(machine.gpu) if machine else []
    if not names or not ours or all(set(_GPU.findall(name)) <= {*ours} for name in names):
        return ""
    assert machine is not None
    return f"timed on {brief(', '.join(names))}, where the profile is of {machine.gpu}"


def _refuse_unknown_mark(lines: Sequence[Line]) -> None:
    """Raise InputError where something unknown stands before nccl-tests' lines."""
    mark = unknown_mark(lines, _CONTENT)
    if mark:
        raise InputError(
            f"Lines begin with {brief(mark)}, a mark of no launcher that is known here, so the "
            "tables cannot be read; take it off every line."
        )


def _read_json(data: bytes, hints: Hints) -> Found:
    """Read the file that ``-J`` writes; never look at its environment dump."""
    try:
        document = json.loads(text_of(data))
        arguments, config = document["args"], document["config"]
        ranks = ((device.get("group"), device["hostname"]) for device in config["devices"])
        hosts = hosts_of(ranks, "devices: the groups")
        each = int(config["nthreads"]) * int(config["ngpus"])
        if not 1 <= each * len(hosts) <= _MOST_RANKS:
            raise InputError(f"The file names {each} ranks on each of {len(hosts)} devices.")
        group = group_of(str(arguments[0]), [host for host in hosts for _ in range(each)], hints)
        check_bounds("out_of_bounds", (document.get("out_of_bounds") or {}).get("count", 0))
        found = [
            (
                f"results[{index}]",
                int(result["size"]),
                (_json_timing(result.get("out_of_place")), _json_timing(result.get("in_place"))),
            )
            for index, result in enumerate(document["results"])
        ]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Not a complete nccl-tests JSON file: {brief(repr(error))}.") from None
    except RecursionError:
        raise InputError("Not a complete nccl-tests JSON file: nested too deeply.") from None
    return rows_of(group, found, hints), ""


def _json_timing(value: Any) -> NcclTiming | None:
    if value is None:
        return None
    if "time" not in value:
        raise InputError("nccl-tests timed the CPU (-C); run it without -C to time the collective.")
    wrong = value["nwrong"]
    return NcclTiming(
        time_us=float(value["time"]),
        bus_gb_s=float(value["bus_bw"]),
        wrong=0.0 if wrong is None else float(wrong),
    )


def _read_table(data: bytes, hints: Hints) -> Found:
    """Read ``size_bytes,time_us_outofplace,time_us_inplace``; a comment has ``ranks=… nodes=…``."""
    lines = (line[:_MOST_HEADER] for _, line in lines_of(text_of(data)) if line[:1] == "#")
    headers = dict.fromkeys(match.groups() for match in map(_HEADER.match, lines) if match)
    if len(headers) > 1:
        raise InputError(
            f"The file has tables of {len(headers)} collectives or groups; import each as a file "
            "of its own."
        )
    name, *numbers = next(iter(headers), (None, "0", "1"))
    ranks, nodes = (int(one) for one in numbers)
    if headers and nodes and ranks % nodes:
        raise InputError(f"The header names {ranks} ranks on {nodes} nodes, not as many on each.")
    if headers and not 1 <= nodes <= ranks <= _MOST_RANKS:
        raise InputError(
            f"The header names {brief(numbers[0])} ranks on {brief(numbers[1])} nodes."
        )
    group = group_of(name, [str(rank % nodes) for rank in range(ranks)], hints)
    column = _TABLE[2] if group.op in IN_PLACE else _TABLE[1]
    return [
        (f"line {i}", group.row(count(i, row, "size_bytes"), microseconds(i, row, column), hints))
        for i, row in records(data, _TABLE)
        if row[column].strip()
    ], ""


nccl_text = Importer(
    section="collectives",
    read=_read_text,
    about="Output of nccl-tests as printed, of any version, with one table or several, with or "
    "without launchers' marks; gives collective and ranks itself.",
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
