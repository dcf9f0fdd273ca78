"""What all forms of nccl-tests' output share: a collective, the group that ran it, its timings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from domino_tune.measure.importers.imported import MOST_COUNT, Hints, Placed
from simulator.errors import InputError, unknown_name
from simulator.lookup.collective_law import COLLECTIVES
from simulator.lookup.collectives import CollectiveRow
from simulator.ops import busbw_factor

BINARIES: Final = {
    "all_reduce_perf": "all_reduce",
    "all_gather_perf": "all_gather",
    "reduce_scatter_perf": "reduce_scatter",
    "broadcast_perf": "broadcast",
    "sendrecv_perf": "send_recv",
}
OTHERS: Final = (
    "alltoall_perf", "gather_perf", "hypercube_perf", "reduce_perf", "scatter_perf",
)  # fmt: skip
"""Programs of nccl-tests whose collectives no prediction needs."""
# torch runs these in place, but gathers and scatters from one buffer to another.
IN_PLACE: Final = ("all_reduce", "broadcast")
_BUSBW_TOLERANCE: Final = 0.03


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One direction (out of place, or in place) of one size. ``wrong``: number of wrong elements;
    ``deviation``: the largest one; older versions of nccl-tests allow up to ``allowed``.
    """

    time_us: float
    bus_gb_s: float
    wrong: float = 0.0
    deviation: float = 0.0
    allowed: float = math.inf


Both = tuple[Timing | None, Timing | None]
"""Timings out of place and in place."""
Result = tuple[str, int, Both]
"""Place in the file, bytes, timings."""


@dataclass(frozen=True, kw_only=True)
class Group:
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


def group_of(program: str | None, hosts: Sequence[str], hints: Hints) -> Group:
    """Return the group, by the hints, else by the file, whose ranks run on ``hosts``.

    Raise InputError if neither determines it, or if they contradict each other.
    """
    op = _op(program, hints)
    nodes, per_node = _shape(hosts, hints)
    return Group(op=op, nodes=nodes, per_node=per_node)


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
    if hosts and hints.per_node is None and len(hosts) % nodes:
        raise InputError(
            f"{len(hosts)} ranks do not spread evenly over {nodes} nodes; pass --nodes and "
            "--ranks-per-node."
        )
    if hosts and nodes * per_node != len(hosts):
        raise InputError(
            f"The file names {len(hosts)} ranks on {len(set(hosts))} nodes, which {nodes}x"
            f"{per_node} are not; correct --nodes and --ranks-per-node, or leave them out."
        )
    return nodes, per_node


def rows_of(group: Group, found: Iterable[Result], hints: Hints) -> Placed:
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


def _check(group: Group, place: str, size: int, timing: Timing) -> None:
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
