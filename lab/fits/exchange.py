"""Experts' tokens on the wire: all-to-all by NCCL, dispatch and combine by DeepEP and Hybrid-EP.

Sizes are bytes that a rank gets or gives, a copy of a token for each rank that needs it, its own
share counted; routing was random. DeepEP's dispatch was timed in FP8, its combine in BF16; dispatch
in BF16 is taken to cost as much by the byte and by the row.

DeepEP was timed with five hidden sizes, which tell what a row costs beside its bytes: with 24 SMs
of a B200 8 of the 28 ns of a combine's row of 7,168. Hybrid-EP was timed with one, in BF16 and in
FP8: what an FP8 row saves is what its bytes cost, as far as the link could bring them, and the rest
is the row's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import comb
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from lab.fits.collectives import fit_group
from lab.fits.common import Floats, Sources, nonnegative, rounded, withheld
from simulator.lookup.collective_fit import MIB, CollectiveFit
from simulator.lookup.collectives import CollectiveRow
from simulator.ops import CollectiveKind

LEAST_TOP_K: Final = 4
"""Of the shapes that laws are fitted to: with fewer, most of what a rank gets may be its own."""
BLOCK: Final = 128
"""Numbers that share a scale of 4 bytes in an FP8 dispatch."""
NEIGHBOUR: Final = 0.1
"""Error of a law on the GPU of another generation behind the same link."""
LEAST_ERROR: Final = 0.15
"""Of a law of a single timing."""
TOKENS, HIDDEN, TOP_K, EACH = 4096, 7168, 8, 8
"""Tokens a rank, hidden size, top-k and experts a rank of Hybrid-EP's timings."""
WIDE, NARROW = 2 * HIDDEN, HIDDEN + 4 * (HIDDEN // BLOCK)
"""Bytes of such a row in BF16, and in FP8 with its scales."""
NVLINK_GB_S: Final = 900.0
"""What a GPU of Blackwell gets at most (NVIDIA's data sheets)."""
NIC_GB_S: Final = 50.0
"""Of 400 Gb/s."""
V2_SMS: Final = 24
BLACKWELL: Final = ("b200", "b300", "gb200", "gb300")
NODE: Final = 8
DEEPSEEK: Final = (256, 8)
"""Experts and top-k of the timings over nodes."""
ILL: Final = "8"
"""Nodes whose timings wait 8 ms for counts."""


class Moved(NamedTuple):
    """One timing: the hidden size, bytes, us."""

    hidden: int
    rows: float
    row_bytes: int
    us: float

    @property
    def size_bytes(self) -> float:
        """Bytes of all rows."""
        return self.rows * self.row_bytes


def copies(ranks: int, experts: int, top_k: int) -> float:
    """Return how many ranks a token goes to, of uniform routing."""
    return ranks * (1 - comb(experts - experts // ranks, top_k) / comb(experts, top_k))


def all_to_alls(gpu: str, sources: Sources) -> Iterator[CollectiveFit]:
    """Yield the laws of NCCL's all-to-all in a node, by ranks."""
    groups: dict[int, list[CollectiveRow]] = {}
    for row in sources.rows("moe/nccl_alltoall.csv"):
        if row["gpu"] == gpu:
            made = CollectiveRow(
                op="all_to_all", nodes=1, per_node=int(row["ranks"]), bytes=int(row["bytes"]),
                median_us=float(row["us"]),
            )  # fmt: skip
            groups.setdefault(made.per_node, []).append(made)
    for rows in groups.values():
        yield fit_group(rows)


def deepep(gpu: str, sources: Sources) -> Iterator[CollectiveFit]:
    """Yield the laws of DeepEP in a node or tray, by SMs. On Blackwell a later version is faster:
    the error reaches it."""
    table = "moe" if gpu in ("h100", "h200", "b200") else "blackwell"
    ranks, timed = NODE, dict[tuple[CollectiveKind, int], tuple[list[Moved], list[Moved]]]()
    for row in sources.rows(f"{table}/deepep_one_node.csv.gz"):
        if row["gpu"] != gpu:
            continue
        ranks, hidden, top_k = int(row.get("ranks", NODE)), int(row["hidden"]), int(row["topk"])
        moved = int(row["tokens"]) * copies(ranks, int(row["experts"]), top_k)
        for op, row_bytes in _row_bytes(hidden):
            made = Moved(hidden, moved, row_bytes, float(row[f"{_short(op)}_us"]))
            some, every = timed.setdefault((op, int(row["sms"])), ([], []))
            every.append(made)
            if top_k >= LEAST_TOP_K:
                some.append(made)
    laws = [_line(op, (1, ranks, sms), *moves) for (op, sms), moves in timed.items()]
    later = _later(sources) if gpu in BLACKWELL else {}
    slower = {
        law.op: rounded(1 - _gb_s(law) / later[law.op], 2)
        for law in laws
        if later and law.ctas == V2_SMS
    }
    for law in laws:
        yield replace(law, error=max(law.error, slower.get(law.op, 0.0)))


def _gb_s(law: CollectiveFit) -> float:
    """Return the rate of DeepSeek-V3's rows, beyond the latency."""
    row_bytes = dict(_row_bytes(HIDDEN))[law.op]
    return row_bytes / (law.us_per_mib[0] * 1e3 * row_bytes / MIB + law.ns_per_row)


def _later(sources: Sources) -> dict[CollectiveKind, float]:
    """Return the GB/s of DeepEP's second version in a node of Blackwell."""
    row = next(
        row for row in sources.rows("moe/deepep_readme.csv")
        if (row["version"], row["arch"], row["link"], row["sms"])
        == ("V2", "sm100", "nvlink", str(V2_SMS))
    )  # fmt: skip
    return {
        "deepep_dispatch": float(row["dispatch_gbs"]), "deepep_combine": float(row["combine_gbs"]),
    }  # fmt: skip


def deepep_over_nodes(sources: Sources) -> Iterator[CollectiveFit]:
    """Yield the laws of DeepEP over nodes of H100s, by nodes and SMs."""
    timed: dict[tuple[CollectiveKind, int, int], list[Moved]] = {}
    for row in sources.rows("moe/deepep_nodes.csv.gz"):
        if row["nodes"] in ("1", ILL):
            continue
        nodes, hidden, tokens = int(row["nodes"]), int(row["hidden"]), int(row["tokens"])
        moved = tokens * copies(nodes * NODE, *DEEPSEEK)
        for op, row_bytes in _row_bytes(hidden):
            made = Moved(tokens, moved, row_bytes, float(row[f"{_short(op)}_us"]))
            timed.setdefault((op, nodes, int(row["sms"])), []).append(made)
    for (op, nodes, sms), moves in timed.items():
        yield _line(op, (nodes, NODE, sms), moves, moves)


def _row_bytes(hidden: int) -> tuple[tuple[CollectiveKind, int], ...]:
    return (("deepep_dispatch", hidden + 4 * (hidden // BLOCK)), ("deepep_combine", 2 * hidden))


def _short(op: CollectiveKind) -> str:
    return op.partition("_")[2]


def _line(
    op: CollectiveKind, group: tuple[int, int, int], some: Sequence[Moved], every: Sequence[Moved]
) -> CollectiveFit:
    """Return the line of some timings; ``error`` is that on every one, its hidden size withheld.
    Of rows of one size alone nothing tells what a row costs."""
    apart = len({one.row_bytes for one in some}) > 1

    def shares(moves: Sequence[Moved]) -> Floats:
        return np.array([(1.0, one.size_bytes / MIB, apart * one.rows / 1e3) for one in moves])

    def solve(moves: Sequence[Moved]) -> Floats:
        us = np.array([one.us for one in moves])
        return nonnegative(shares(moves), us, 1 / us)[0]

    def off(others: list[Moved], mine: list[Moved]) -> list[float]:
        told = shares(mine) @ solve([one for one in others if one in fitted])
        return [abs(us / one.us - 1) for us, one in zip(told, mine, strict=True)]

    fitted = set(some)
    latency_us, us_per_mib, ns_per_row = map(float, solve(some))
    nodes, per_node, sms = group
    return CollectiveFit(
        op=op, nodes=nodes, per_node=per_node, ctas=sms, latency_us=rounded(max(latency_us, 1.0)),
        us_per_mib=(rounded(us_per_mib),), ns_per_row=rounded(ns_per_row),
        min_bytes=int(min(one.size_bytes for one in some)),
        max_bytes=int(max(one.size_bytes for one in some)),
        error=rounded(fmean(withheld(every, lambda one: one.hidden, off)), 2),
    )  # fmt: skip


class HybridEp(NamedTuple):
    """Hybrid-EP's timings of one group and number of SMs. ``gb_s``: by op, dtype and time, of the
    rows on the link; ``rows``: all that a rank gets or gives; ``most_gb_s``: what the link could
    bring."""

    gb_s: Mapping[tuple[str, str, str], float]
    rows: float
    on_link: float
    most_gb_s: float

    def us(self, op: str, dtype: str, time: str) -> float:
        """Return the time of a kernel or a whole call."""
        row_bytes = WIDE if dtype == "bf16" else NARROW
        return self.on_link * row_bytes / self.gb_s[op, dtype, time] / 1e3

    def saved_us(self, time: str) -> float:
        """Return what a dispatch in FP8 saves."""
        return self.us("dispatch", "bf16", time) - self.us("dispatch", "fp8", time)

    def law(self, op: str, group: tuple[int, int, int]) -> CollectiveFit:
        """Return the law: bytes and rows of the kernel; what the call takes around it, by bytes as
        far as FP8 saves of that, too, else once. ``error`` of a dispatch is that on the FP8 row."""
        call_us, kernel_us = (self.us(op, "bf16", time) for time in ("call", "kernel"))
        around_us = self.us("dispatch", "bf16", "call") - self.us("dispatch", "bf16", "kernel")
        share = 1 / (1 - NARROW / WIDE)
        by_bytes = max(0.0, self.saved_us("call") - self.saved_us("kernel")) * share / around_us
        on_link_us = self.on_link * WIDE / self.most_gb_s / 1e3
        in_kernel_us = min(max(self.saved_us("kernel") * share, on_link_us), kernel_us)
        bytes_us = in_kernel_us + (call_us - kernel_us) * by_bytes
        told_us = call_us - bytes_us / share
        off = abs(told_us / self.us(op, "fp8", "call") - 1) if op == "dispatch" else 0.0
        nodes, per_node, sms = group
        return CollectiveFit(
            op=f"hybridep_{op}",  # type: ignore[arg-type]  # both are kinds
            nodes=nodes, per_node=per_node, ctas=sms,
            latency_us=rounded((call_us - kernel_us) * (1 - by_bytes)),
            us_per_mib=(rounded(bytes_us * MIB / (self.rows * WIDE)),),
            ns_per_row=rounded((kernel_us - in_kernel_us) / self.rows * 1e3),
            min_bytes=int(self.rows * WIDE / 2), max_bytes=int(self.rows * WIDE),
            error=rounded(max(LEAST_ERROR, off), 2),
        )  # fmt: skip


def hybridep(gpu: str, sources: Sources) -> Iterator[CollectiveFit]:
    """Yield the laws of Hybrid-EP, by ranks and SMs."""
    rates: dict[tuple[int, int], dict[tuple[str, str, str], float]] = {}
    for row in sources.rows("moe/hybridep.csv"):
        if (row["gpu"], row["implementation"]) == (gpu, "hybridep"):
            group = rates.setdefault((int(row["ranks"]), int(row["sms"])), {})
            group[row["op"], row["dtype"], row["time"]] = float(row["gb_s"])
    for (ranks, sms), known in rates.items():
        nodes = ranks // NODE if gpu == "h100" else 1
        to_ranks, to_nodes = (TOKENS * copies(n, EACH * ranks, TOP_K) for n in (ranks, nodes))
        timed = (
            HybridEp(known, to_ranks, to_nodes, NIC_GB_S * nodes / (nodes - 1))
            if nodes > 1
            else HybridEp(known, to_ranks, to_ranks, NVLINK_GB_S)
        )
        yield from (timed.law(op, (nodes, ranks // nodes, sms)) for op in ("dispatch", "combine"))


def neighbours(fits: Iterable[CollectiveFit]) -> Iterator[CollectiveFit]:
    """Yield the laws as assumed for the GPU of the next generation behind the same link."""
    for fit in fits:
        yield replace(fit, kind="assumed", error=max(NEIGHBOUR, fit.error))


def exchanges(gpu: str, sources: Sources) -> list[CollectiveFit]:
    """Return the laws of a GPU's experts' tokens; an A100 has an all-to-all alone."""
    found: list[CollectiveFit] = []
    if gpu in ("a100", "h100", "h200", "b200"):
        found += all_to_alls(gpu, sources)
    if gpu != "a100":
        found += deepep(gpu, sources)
    if gpu in ("h100", "b200", "gb200"):
        found += hybridep(gpu, sources)
    if gpu == "h100":
        found += deepep_over_nodes(sources)
    like = {"h200": "h100", "b300": "b200", "gb300": "gb200"}.get(gpu)
    if like:
        found += neighbours(hybridep(like, sources))
    if gpu == "h200":
        found += neighbours(deepep_over_nodes(sources))
    return found
