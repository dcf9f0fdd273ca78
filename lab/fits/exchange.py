"""Experts' tokens on the wire: all-to-all by NCCL, dispatch and combine by DeepEP and Hybrid-EP.

Sizes are bytes that a rank gets or gives, a copy of a token for each rank that needs it, its own
share counted; routing was random. DeepEP's dispatch was timed in FP8, its combine in BF16; dispatch
in BF16 is taken to cost as much by the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import comb
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from lab.fits.collectives import fit_group
from lab.fits.common import Sources, nonnegative, rounded, withheld
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
TIMED: Final = (4096, 7168, 8, 8)
"""Tokens a rank, hidden size, top-k and experts a rank of Hybrid-EP's timings."""
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
    size_bytes: float
    us: float


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
        for op, token_bytes in _token_bytes(hidden):
            made = Moved(hidden, moved * token_bytes, float(row[f"{_short(op)}_us"]))
            some, every = timed.setdefault((op, int(row["sms"])), ([], []))
            every.append(made)
            if top_k >= LEAST_TOP_K:
                some.append(made)
    laws = [_line(op, (1, ranks, sms), *moves) for (op, sms), moves in timed.items()]
    later = _later(sources) if gpu in BLACKWELL else {}
    slower = {
        law.op: rounded(1 - MIB / law.us_per_mib[0] / 1e3 / later[law.op], 2)
        for law in laws
        if later and law.ctas == V2_SMS
    }
    for law in laws:
        yield replace(law, error=max(law.error, slower.get(law.op, 0.0)))


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
        nodes, hidden = int(row["nodes"]), int(row["hidden"])
        moved = int(row["tokens"]) * copies(nodes * NODE, *DEEPSEEK)
        for op, token_bytes in _token_bytes(hidden):
            made = Moved(int(row["tokens"]), moved * token_bytes, float(row[f"{_short(op)}_us"]))
            timed.setdefault((op, nodes, int(row["sms"])), []).append(made)
    for (op, nodes, sms), moves in timed.items():
        yield _line(op, (nodes, NODE, sms), moves, moves)


def _token_bytes(hidden: int) -> tuple[tuple[CollectiveKind, int], ...]:
    return (("deepep_dispatch", hidden + 4 * (hidden // BLOCK)), ("deepep_combine", 2 * hidden))


def _short(op: CollectiveKind) -> str:
    return op.partition("_")[2]


def _line(
    op: CollectiveKind, group: tuple[int, int, int], some: Sequence[Moved], every: Sequence[Moved]
) -> CollectiveFit:
    """Return the line of some timings; ``error`` is that on every one, its hidden size withheld."""

    def solve(moves: Sequence[Moved]) -> tuple[float, float]:
        size = np.array([one.size_bytes / MIB for one in moves])
        us = np.array([one.us for one in moves])
        design = np.stack([np.ones_like(size), size], axis=1)
        latency_us, us_per_mib = nonnegative(design, us, 1 / us)[0]
        return float(latency_us), float(us_per_mib)

    def off(others: list[Moved], mine: list[Moved]) -> list[float]:
        latency_us, us_per_mib = solve([one for one in others if one in fitted])
        return [abs((latency_us + us_per_mib * one.size_bytes / MIB) / one.us - 1) for one in mine]

    fitted = set(some)
    latency_us, us_per_mib = solve(some)
    nodes, per_node, sms = group
    return CollectiveFit(
        op=op, nodes=nodes, per_node=per_node, ctas=sms, latency_us=rounded(max(latency_us, 1.0)),
        us_per_mib=(rounded(us_per_mib),), min_bytes=int(min(one.size_bytes for one in some)),
        max_bytes=int(max(one.size_bytes for one in some)),
        error=rounded(fmean(withheld(every, lambda one: one.hidden, off)), 2),
    )  # fmt: skip


def hybridep(gpu: str, sources: Sources) -> Iterator[CollectiveFit]:
    """Yield the laws of Hybrid-EP, by ranks and SMs: kernels by bytes, and what the whole call
    takes more. Of the BF16 rows; a dispatch in FP8 shows how far by bytes is right."""
    rates: dict[tuple[int, int], dict[tuple[str, str, str], float]] = {}
    for row in sources.rows("moe/hybridep.csv"):
        if (row["gpu"], row["implementation"]) == (gpu, "hybridep"):
            group = rates.setdefault((int(row["ranks"]), int(row["sms"])), {})
            group[row["op"], row["dtype"], row["time"]] = float(row["gb_s"])
    tokens, hidden, top_k, each = TIMED
    for (ranks, sms), known in rates.items():
        nodes = ranks // NODE if gpu == "h100" else 1
        to_ranks = tokens * copies(ranks, each * ranks, top_k)
        on_link = tokens * copies(nodes, each * ranks, top_k) if nodes > 1 else to_ranks
        call_us, kernel_us = (
            {key[:2]: on_link * _bytes(hidden, key[1]) / rate / 1e3
             for key, rate in known.items() if key[2] == time}
            for time in ("call", "kernel")
        )  # fmt: skip
        for op in ("dispatch", "combine"):
            size = to_ranks * 2 * hidden
            latency_us = call_us[op, "bf16"] - kernel_us[op, "bf16"]
            error = LEAST_ERROR
            if op == "dispatch":
                narrow = _bytes(hidden, "fp8") / 2 / hidden
                told = latency_us + kernel_us[op, "bf16"] * narrow
                error = max(error, abs(told / call_us[op, "fp8"] - 1))
            yield CollectiveFit(
                op=f"hybridep_{op}",  # type: ignore[arg-type]  # both are kinds
                nodes=nodes, per_node=ranks // nodes, ctas=sms, latency_us=rounded(latency_us),
                us_per_mib=(rounded(kernel_us[op, "bf16"] * MIB / size),),
                min_bytes=int(size / 2), max_bytes=int(size), error=rounded(error, 2),
            )  # fmt: skip


def _bytes(hidden: int, dtype: str) -> float:
    return 2 * hidden if dtype == "bf16" else hidden + 4 * (hidden // BLOCK)


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
