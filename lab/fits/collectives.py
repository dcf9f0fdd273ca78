"""Collectives: piecewise α–β laws of NCCL's and of multimem ones, and lines of what moves experts'
tokens: all-to-all by NCCL, dispatch and combine by DeepEP and Hybrid-EP. Sizes of dispatch and
combine are bytes that a rank gets or gives, a copy of a token for each rank that needs it, its own
share counted; routing was random. DeepEP's dispatch was timed in FP8, its combine in BF16; dispatch
in BF16 is taken to cost as much by the byte and by the row. Five hidden sizes tell what a row of
DeepEP's costs beside its bytes: with 24 SMs of a B200 5 of the 32 ns of a combine's row of 7,168.
Hybrid-EP was timed with one, in BF16 and in FP8: what an FP8 row saves is what its bytes cost, as
far as the link could bring them, and the rest is the row's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np

from domino_tune.measure.importers.tables import collectives_csv
from lab.fits.common import Floats, Gpu, Sources, mape, nonnegative, rounded, withheld
from simulator.errors import InputError
from simulator.lookup.collective_law import MIB, CollectiveFit, GroupKey
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.expected import COLLECTIVE_RELATED
from simulator.ops import CollectiveKind
from simulator.profile import CollectiveSection

_LEAST_GAP: Final = 4  # least ratio of neighbouring knots, so that every segment has points
_TRIED: Final = 30
CTAS: Final = (2, 4, 8, 16, 32)  # Of figure_7.csv's multimem all-reduces
BEST: Final[tuple[tuple[CollectiveKind, str], ...]] = (
    ("multimem_all_reduce", "multimem_ar_us"), ("multimem_reduce_scatter", "multimem_rs_us"),
    ("multimem_all_gather", "multimem_ag_us"),
)  # fmt: skip
"""Collective -> its column in figure_5.csv, at its best CTAs."""
NODE: Final = 8
NEIGHBOUR: Final = 0.1  # Error of a law on the GPU of another generation behind the same link


def collective_section(gpu: Gpu, fits: Iterable[CollectiveFit]) -> CollectiveSection:
    """Return the section of these laws; its error is the mean of its all-reduces'."""
    made = tuple(sorted(fits, key=lambda fit: fit.group))
    gb_s, latency_us = gpu.told["collectives"]["nic"]
    error = rounded(fmean(fit.error for fit in made if fit.op == "all_reduce"), 2)
    words = gpu.words("collectives", error)
    return CollectiveSection(fits=made, nic_gb_s=gb_s, nic_latency_us=latency_us, provenance=words)


def node_collectives(gpu: Gpu, sources: Sources) -> tuple[CollectiveFit, ...]:
    """Return the laws of the table of a GPU's node."""
    return fit_collectives(collectives_csv(sources.table(gpu.told["collectives"]["table"])).rows)


def multimem_collectives(sources: Sources) -> tuple[CollectiveFit, ...]:
    """Return the laws on eight H100s, all-reduces by CTAs; 0: the best CTAs of each size."""
    by_ctas = [(BEST[0][0], ctas, f"multimem_ar_us_ctas_{ctas}") for ctas in CTAS]
    best = [(op, 0, column) for op, column in BEST]
    return fit_collectives(
        CollectiveRow(
            op=op, nodes=1, per_node=NODE, ctas=ctas, bytes=2 * row.BL * row.hidden_size,
            median_us=getattr(row, column),
        ) for name, timed in (("figure_7.csv", by_ctas), ("figure_5.csv", best))
        for row in sources.rows(f"multimem/{name}") for op, ctas, column in timed
    )  # fmt: skip


def fit_collectives(rows: Iterable[CollectiveRow]) -> tuple[CollectiveFit, ...]:
    """Return a law per group (op, nodes, per node, CTAs), sorted; ``error``: leave-one-out MAPE."""
    groups: dict[GroupKey, list[CollectiveRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return tuple(fit_group(groups[group]) for group in sorted(groups))


def fit_group(rows: Sequence[CollectiveRow]) -> CollectiveFit:
    """Return the law of one group's rows, with the knots of the least leave-one-out error."""
    rows = sorted(rows, key=lambda row: row.bytes)
    if len(rows) < 3:
        raise InputError(f"A law for {rows[0].group} needs at least 3 sizes, got {len(rows)}.")
    sizes = np.array([row.bytes for row in rows], dtype=np.float64) / MIB
    times = np.array([row.median_us for row in rows])
    knots = _best_knots(sizes, times)
    latency, *slopes = _solve(_design(sizes, knots), times)
    return CollectiveFit(
        op=rows[0].op, nodes=rows[0].nodes, per_node=rows[0].per_node, ctas=rows[0].ctas,
        latency_us=rounded(max(latency, 0.1)), knots_bytes=tuple(int(knot * MIB) for knot in knots),
        us_per_mib=tuple(rounded(slope) for slope in slopes), min_bytes=rows[0].bytes,
        max_bytes=rows[-1].bytes, error=rounded(_leave_one_out(sizes, times, knots), 2),
    )  # fmt: skip


def _design(sizes: Floats, knots: Sequence[float]) -> Floats:
    edges = [0.0, *knots, np.inf]
    segments = [np.clip(sizes, low, high) - low for low, high in itertools.pairwise(edges)]
    return np.stack([np.ones_like(sizes), *segments], axis=1)


def _solve(design: Floats, times: Floats) -> Floats:
    return nonnegative(design, times, 1 / times)[0]


def _leave_one_out(sizes: Floats, times: Floats, knots: Sequence[float]) -> float:
    design = _design(sizes, knots)
    if len(sizes) < 5:
        return _in_sample(sizes, times, knots)
    others = ~np.eye(len(sizes), dtype=bool)
    inner = range(1, len(sizes) - 1)
    predicted = np.array([design[i] @ _solve(design[others[i]], times[others[i]]) for i in inner])
    return mape(predicted, times[1:-1])


def _in_sample(sizes: Floats, times: Floats, knots: Sequence[float]) -> float:
    design = _design(sizes, knots)
    return mape(design @ _solve(design, times), times)


def _best_knots(sizes: Floats, times: Floats) -> tuple[float, ...]:
    """Return knots at powers of two inside the range, as many as reduce leave-one-out error."""
    inside = [2.0**power for power in range(-20, 20) if sizes[1] <= 2.0**power <= sizes[-2]]
    most = min(4, int(len(sizes) / 1.5) - 2)
    candidates: list[tuple[float, ...]] = [()]
    for knot_count in range(1, most + 1):
        spaced = [
            knots for knots in itertools.combinations(inside, knot_count)
            if all(b >= a * _LEAST_GAP for a, b in itertools.pairwise(knots))
        ]  # fmt: skip
        # Leaving points out costs seconds, so it is tried for the best in-sample candidates only.
        spaced.sort(key=lambda knots: (round(_in_sample(sizes, times, knots), 6), knots))
        candidates += spaced[:_TRIED]
    scored = [(round(_leave_one_out(sizes, times, knots), 6), knots) for knots in candidates]
    return min(scored, key=lambda item: (item[0], len(item[1]), item[1]))[1]


# A B200's node by SimuMax ------------------------------------------------------------------------

GIB: Final = 1 << 30
COLLECTIVE_ERROR: Final = 0.16
"""Error of an all-reduce by the authors' way to fit a line, on the H100 points that their script
holds (simu_tools/efficency_test/nccl_fit.py), 1 MiB to 1 GiB; below 5 % from 16 MiB on. Gathers and
scatters: 6 and 5 %."""
FITTED_BYTES: Final[dict[str, Any]] = {"min_bytes": MIB, "max_bytes": GIB}
"""Sizes to which that script fits."""
BOTH_DIRECTIONS: Final = 2
"""The table's send and receive run at 1,403 GB/s, a link at 900 one way: both are counted."""


def b200_collectives(sources: Sources) -> Iterator[CollectiveFit]:
    """Yield the authors' formulas as laws of 2, 4 and 8 ranks; sending: between two."""
    for row in sources.rows("b200/collectives_nvlink.csv"):
        us_per_mib = 1e6 * MIB * row.scale / (row.gbps * GIB * row.efficiency)
        if row.op == "p2p":
            yield CollectiveFit(
                op="send_recv", nodes=1, per_node=2, kind="assumed",
                latency_us=rounded(row.latency_us, 6), error=COLLECTIVE_RELATED.error,
                us_per_mib=(rounded(us_per_mib * BOTH_DIRECTIONS, 6),), **FITTED_BYTES,
            )  # fmt: skip
        for ranks in (2, 4, 8):
            if row.op in ("all_reduce", "all_gather", "reduce_scatter"):
                step_us = row.latency_us * (ranks + row.offset) * row.scale
                yield CollectiveFit(
                    op=row.op, nodes=1, per_node=ranks, error=COLLECTIVE_ERROR,
                    latency_us=rounded(step_us + row.fixed_latency_us, 6),
                    us_per_mib=(rounded(us_per_mib * (1 + row.offset / ranks), 6),), **FITTED_BYTES,
                )  # fmt: skip


# Nodes, trays and racks of Blackwell: NCCL; beyond GB300's tray that of GB200's rack -------------

OPS: Final[dict[str, CollectiveKind]] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}  # fmt: skip
EXCHANGE_US: Final = (8, 12.0)
"""Ranks, and what a small all-to-all takes there with NCCL 2.29.2. The rack's rows are of a version
that took 66 us."""


def blackwell_collectives(gpu: Gpu, sources: Sources) -> Iterator[CollectiveFit]:
    """Yield the laws of a node or tray, and of a rack where the GPU is in one."""
    yield from _by_ranks(sources, "nccl_nvlink", gpu=gpu.short)
    if gpu.machine.gpus_per_domain:
        rack = map(_exchange, _by_ranks(sources, "gb200_nccl_nvl72"))
        yield from rack if gpu.short == "gb200" else neighbours(rack)


def _by_ranks(sources: Sources, table: str, **alike: str) -> tuple[CollectiveFit, ...]:
    """Return the law of each op and number of ranks; int8 cannot use NVLink SHARP."""
    rows = sources.rows(f"blackwell/{table}.csv.gz", **alike)
    return fit_collectives(_in_a_node(OPS[row.op], row) for row in rows if row.dtype != "int8")


def _in_a_node(op: CollectiveKind, row: Any) -> CollectiveRow:
    return CollectiveRow(op=op, nodes=1, per_node=row.ranks, bytes=row.bytes, median_us=row.us)


def _exchange(fit: CollectiveFit) -> CollectiveFit:
    """Return an all-to-all's law with a current latency, and the rate of the largest message."""
    if fit.op != "all_to_all":
        return fit
    ranks, latency_us = EXCHANGE_US
    latency_us *= math.log2(fit.per_node) / math.log2(ranks)
    most_us = fit.latency_us + fit.transfer_us(fit.max_bytes)
    return replace(
        fit, latency_us=rounded(latency_us), knots_bytes=(), kind="assumed", error=0.2,
        us_per_mib=(rounded(most_us * MIB / fit.max_bytes),),
    )  # fmt: skip


def neighbours(fits: Iterable[CollectiveFit]) -> Iterator[CollectiveFit]:
    """Yield the laws as assumed for the GPU of another generation behind the same link."""
    for fit in fits:
        yield replace(fit, kind="assumed", error=max(NEIGHBOUR, fit.error))


LEAST_TOP_K: Final = 4
"""Of the shapes that laws are fitted to: with fewer, most of what a rank gets may be its own."""
BLOCK: Final = 128  # Numbers that share a scale of 4 bytes in an FP8 dispatch
LEAST_ERROR: Final = 0.15  # Of a law of a single timing
TOKENS, HIDDEN, TOP_K, EACH = 4096, 7168, 8, 8
"""Tokens a rank, hidden size, top-k and experts a rank of Hybrid-EP's timings."""
WIDE, NARROW = 2 * HIDDEN, HIDDEN + 4 * (HIDDEN // BLOCK)
"""Bytes of such a row in BF16, and in FP8 with its scales."""
NVLINK_GB_S: Final = 900.0  # What a GPU of Blackwell gets at most (NVIDIA's data sheets)
NIC_GB_S: Final = 50.0  # Of 400 Gb/s
V2_SMS: Final = 24
BLACKWELL: Final = ("b200", "b300", "gb200", "gb300")
DEEPSEEK: Final = (256, 8)  # Experts and top-k of the timings over nodes
ILL: Final = 8  # Nodes whose timings wait 8 ms for counts


class Moved(NamedTuple):
    """One timing: what is withheld together, rows, the bytes of each, us."""

    key: int
    rows: float
    row_bytes: int
    us: float

    @property
    def size_bytes(self) -> float:
        """Bytes of all rows."""
        return self.rows * self.row_bytes


def copies(ranks: int, experts: int, top_k: int) -> float:
    """Return how many ranks a token goes to, of uniform routing."""
    return ranks * (1 - math.comb(experts - experts // ranks, top_k) / math.comb(experts, top_k))


def exchanges(gpu: str, sources: Sources) -> list[CollectiveFit]:
    """Return the laws of a GPU's experts' tokens; an A100 has an all-to-all alone."""
    like = {"h200": "h100", "b300": "b200", "gb300": "gb200"}.get(gpu, gpu)
    own = [*all_to_alls(gpu, sources), *deepep(gpu, sources)]
    more = [*hybridep(like, sources), *(deepep_over_nodes(sources) if like == "h100" else ())]
    return [*own, *(more if like == gpu else neighbours(more))]


def all_to_alls(gpu: str, sources: Sources) -> tuple[CollectiveFit, ...]:
    """Return the laws of NCCL's all-to-all in a node, by ranks."""
    rows = sources.rows("moe/nccl_alltoall.csv", gpu=gpu)
    return fit_collectives(_in_a_node("all_to_all", row) for row in rows)


def deepep(gpu: str, sources: Sources) -> Iterator[CollectiveFit]:
    """Yield DeepEP's laws in a node or tray, by SMs; a later version is in Blackwell's error."""
    table = "moe" if gpu in ("h100", "h200", "b200") else "blackwell"
    ranks, timed = NODE, dict[tuple[CollectiveKind, int], tuple[list[Moved], list[Moved]]]()
    for row in sources.rows(f"{table}/deepep_one_node.csv.gz", gpu=gpu):
        ranks = getattr(row, "ranks", NODE)
        moved = row.tokens * copies(ranks, row.experts, row.topk)
        for op, us, row_bytes in _ways(row):
            some, every = timed.setdefault((op, row.sms), ([], []))
            every.append(Moved(row.hidden, moved, row_bytes, us))
            if row.topk >= LEAST_TOP_K:
                some.append(every[-1])
    laws = [_line(op, (1, ranks, sms), *moves) for (op, sms), moves in timed.items()]
    slower: dict[str, float] = {}
    if gpu in BLACKWELL:
        v2 = {"version": "V2", "arch": "sm100", "link": "nvlink", "sms": V2_SMS}
        (later,) = sources.rows("moe/deepep_readme.csv", **v2)
        for law in laws:
            if law.ctas == V2_SMS:
                gb_s = getattr(later, f"{_short(law.op)}_gbs")
                row_bytes = NARROW if law.op == "deepep_dispatch" else WIDE
                row_ns = 1e3 * law.us_per_mib[0] * row_bytes / MIB + law.ns_per_row
                slower[law.op] = rounded(1 - row_bytes / row_ns / gb_s, 2)
    for law in laws:
        yield replace(law, error=max(law.error, slower.get(law.op, 0.0)))


def deepep_over_nodes(sources: Sources) -> Iterator[CollectiveFit]:
    """Yield the laws of DeepEP over nodes of H100s, by nodes and SMs."""
    timed: dict[tuple[CollectiveKind, int, int], list[Moved]] = {}
    for row in sources.rows("moe/deepep_nodes.csv.gz"):
        moved = row.tokens * copies(row.nodes * NODE, *DEEPSEEK)
        for op, us, row_bytes in _ways(row) if row.nodes not in (1, ILL) else ():
            made = Moved(row.tokens, moved, row_bytes, us)
            timed.setdefault((op, row.nodes, row.sms), []).append(made)
    for (op, nodes, sms), moves in timed.items():
        yield _line(op, (nodes, NODE, sms), moves, moves)


def _ways(row: object) -> Iterator[tuple[CollectiveKind, float, int]]:
    hidden: int = row.hidden  # type: ignore[attr-defined]  # a row of a table
    ways: tuple[tuple[CollectiveKind, int], ...] = (
        ("deepep_dispatch", _bytes(hidden, "fp8")), ("deepep_combine", _bytes(hidden, "bf16")),
    )  # fmt: skip
    for op, row_bytes in ways:
        yield op, getattr(row, f"{_short(op)}_us"), row_bytes


def _short(op: CollectiveKind) -> str:
    return op.partition("_")[2]


def _bytes(hidden: int, dtype: str) -> int:
    return 2 * hidden if dtype == "bf16" else hidden + 4 * (hidden // BLOCK)


def _line(
    op: CollectiveKind, group: tuple[int, ...], some: list[Moved], every: list[Moved]
) -> CollectiveFit:
    """Return the line of some timings; ``error`` on every one, its key withheld. Rows of one size
    alone do not tell what a row costs."""
    apart = len({one.row_bytes for one in some}) > 1

    def shares(moves: Sequence[Moved]) -> Floats:
        return np.array([(1.0, one.size_bytes / MIB, apart * one.rows / 1e3) for one in moves])

    def solve(moves: Sequence[Moved]) -> Floats:
        return _solve(shares(moves), np.array([one.us for one in moves]))

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
        error=rounded(fmean(withheld(every, lambda one: one.key, off)), 2),
    )  # fmt: skip


class HybridEp(NamedTuple):
    """Hybrid-EP's timings of one group and number of SMs. ``gb_s``: by op, dtype and time, of the
    rows on the link; ``rows``: all of a rank; ``most_gb_s``: what the link could bring."""

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

    def law(self, op: CollectiveKind, group: tuple[int, int, int]) -> CollectiveFit:
        """Return the law: bytes and rows of the kernel; what the call takes around it, by bytes as
        far as FP8 saves of that, too, else once. ``error`` of a dispatch is that on the FP8 row."""
        way, share = _short(op), 1 / (1 - NARROW / WIDE)
        call_us, kernel_us = (self.us(way, "bf16", time) for time in ("call", "kernel"))
        around_us = self.us("dispatch", "bf16", "call") - self.us("dispatch", "bf16", "kernel")
        by_bytes = max(0.0, self.saved_us("call") - self.saved_us("kernel")) * share / around_us
        on_link_us = self.on_link * WIDE / self.most_gb_s / 1e3
        in_kernel_us = min(max(self.saved_us("kernel") * share, on_link_us), kernel_us)
        bytes_us = in_kernel_us + (call_us - kernel_us) * by_bytes
        told_us = call_us - bytes_us / share
        off = abs(told_us / self.us(way, "fp8", "call") - 1) if way == "dispatch" else 0.0
        nodes, per_node, sms = group
        return CollectiveFit(
            op=op, nodes=nodes, per_node=per_node, ctas=sms,
            latency_us=rounded((call_us - kernel_us) * (1 - by_bytes)),
            us_per_mib=(rounded(bytes_us * MIB / (self.rows * WIDE)),),
            ns_per_row=rounded((kernel_us - in_kernel_us) / self.rows * 1e3),
            min_bytes=int(self.rows * WIDE / 2), max_bytes=int(self.rows * WIDE),
            error=rounded(max(LEAST_ERROR, off), 2),
        )  # fmt: skip


def hybridep(gpu: str, sources: Sources) -> Iterator[CollectiveFit]:
    """Yield the laws of Hybrid-EP, by ranks and SMs."""
    rates: dict[tuple[int, int], dict[tuple[str, str, str], float]] = {}
    for row in sources.rows("moe/hybridep.csv", gpu=gpu, implementation="hybridep"):
        rates.setdefault((row.ranks, row.sms), {})[row.op, row.dtype, row.time] = row.gb_s
    ops: tuple[CollectiveKind, ...] = ("hybridep_dispatch", "hybridep_combine")
    for (ranks, sms), known in rates.items():
        nodes = ranks // NODE if gpu == "h100" else 1
        to_ranks, to_nodes = (TOKENS * copies(n, EACH * ranks, TOP_K) for n in (ranks, nodes))
        inside = HybridEp(known, to_ranks, to_ranks, NVLINK_GB_S)
        timed = (
            inside
            if nodes == 1
            else HybridEp(known, to_ranks, to_nodes, NIC_GB_S * nodes / (nodes - 1))
        )
        yield from (timed.law(op, (nodes, ranks // nodes, sms)) for op in ops)
