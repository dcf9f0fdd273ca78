"""SimuMax's tables of one B200 node, read as rows and laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from domino_tune.measure.importers.tables import Line, count, microseconds, number, records
from lab.fits.attention import fit_attention
from lab.fits.common import Gpu, Sources, rounded
from lab.fits.pointwise import transferred
from simulator.lookup.attention import AttentionFit, AttentionRow
from simulator.lookup.collective_fit import MIB, CollectiveFit
from simulator.lookup.expected import COLLECTIVE_RELATED, POINTWISE_DEFAULT
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import PointwiseFit
from simulator.profile import Profile

GIB: Final = 1 << 30
GEMM_SCATTER: Final = 0.04
"""Spread of a GEMM row. The table has 82 weight gradients twice, adding to fp32 and to bf16: their
ratios scatter by 5.5 % (robust) around the median, which is 3.9 % for each of the two."""
RUNS: Final = 2
"""A GEMM row is the mean of several runs; how many is not published."""
ADDS_TO: Final = {"fp32": True, "bf16": False}
"""Type of a weight gradient's C -> whether we count it as adding. One that adds to bf16 reads and
writes as many bytes as one that writes fp32 once: it stands for those that overwrite."""
LIKE: Final = "copy"
"""Op whose fixed cost and range on our H200 those of RATES get."""
RANKS: Final = (2, 4, 8)
COLLECTIVE_ERROR: Final = 0.16
"""Error of an all-reduce by the authors' way to fit a line, on the H100 points that their script
holds (simu_tools/efficency_test/nccl_fit.py), 1 MiB to 1 GiB; below 5 % from 16 MiB on. Gathers and
scatters: 6 and 5 %."""
FITTED_BYTES: Final = (MIB, GIB)
"""Sizes to which that script fits."""
BOTH_DIRECTIONS: Final = 2
"""The table's send and receive run at 1,403 GB/s, and a link has 900 GB/s one way: both are
counted."""


def _lines(sources: Sources, table: str, *columns: str) -> list[tuple[int, Line]]:
    return list(records(sources.table(f"b200/{table}.csv"), columns))


def gemm_rows(sources: Sources) -> tuple[GemmRow, ...]:
    """Return the table's GEMMs, sorted by signature; each has a batch of 1."""
    rows = [
        GemmRow(
            m=count(i, row, "batch") * count(i, row, "m"), n=count(i, row, "n"),
            k=count(i, row, "k"), layout=row["layout"], dtype="bf16",
            accumulate=row["layout"] == "wgrad" and ADDS_TO[row["out_dtype"]],
            strides=(0, 0, 0), median_us=microseconds(i, row),
            spread_us=rounded(GEMM_SCATTER * microseconds(i, row)), samples=RUNS,
        )
        for i, row in _lines(
            sources, "gemm_bf16", "batch", "m", "n", "k", "layout", "out_dtype", "us"
        )
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: row.signature))


def attention_rows(sources: Sources, *, contiguous: bool = True) -> list[AttentionRow]:
    """Return the timings of contiguous (or not contiguous) q, k and v."""
    return [
        AttentionRow(
            batch=count(i, row, "batch"), heads=count(i, row, "heads"),
            kv_heads=count(i, row, "kv_heads"), seq=count(i, row, "seq"),
            head_dim=count(i, row, "head_dim"),
            direction="forward" if row["direction"] == "forward" else "backward",
            median_us=microseconds(i, row),
        )
        for i, row in _lines(
            sources, "attention_bf16", "direction", "batch", "seq", "heads", "kv_heads",
            "head_dim", "qkv_contiguous", "us",
        )
        if row["qkv_contiguous"] == str(int(contiguous))
    ]  # fmt: skip


def attention_fit(rows: Sequence[AttentionRow], sm_count: int) -> tuple[AttentionFit, float]:
    """Return the law of the kernels, and the gap (us) that was taken out of forward timings."""
    forward, backward = (
        [row for row in rows if row.direction == direction] for direction in ("forward", "backward")
    )

    def fit(forward: Sequence[AttentionRow], pairs: Sequence[AttentionRow]) -> AttentionFit:
        return fit_attention(
            forward, pairs, sm_count=sm_count, withheld_by=lambda row: (row.seq, row.heads)
        )

    gap_us = fit(forward, rows).fixed_us
    kernels = [replace(row, median_us=row.median_us - gap_us) for row in forward]
    return replace(fit(kernels, [*kernels, *backward]), fixed_us=0.0), gap_us


def rates_gb_s(sources: Sources) -> dict[str, float]:
    """Return the rate of each kind of memory-bound op, in 1e9 bytes a second."""
    return {
        row["op"]: rounded(number(i, row, "gbps") * GIB * number(i, row, "efficiency") / 1e9)
        for i, row in _lines(sources, "memory_bound", "op", "gbps", "efficiency")
    }


def pointwise_fits(
    gpu: Gpu, sources: Sources, h200: Profile, least_error: float
) -> tuple[list[PointwiseFit], PointwiseFit]:
    """Return laws of the table's rates, and our H200's of other ops; and the op that gives the
    first ones their fixed cost."""
    rates = rates_gb_s(sources)
    laws = {law.names[0]: law for law in transferred(h200, gpu.machine, least_error=least_error)}
    like = laws[LIKE]
    own = [
        replace(
            like, names=tuple(names), kind="fitted", small_gb_s=rates[rate], knee_bytes=1,
            large_gb_s=rates[rate], error=POINTWISE_DEFAULT.error,
        )
        for rate, names in gpu.told["pointwise"]["rates"].items()
    ]  # fmt: skip
    known = {name for law in own for name in law.names}
    others = [law for name, law in laws.items() if name not in known]
    return sorted((*own, *others), key=lambda law: law.names), like


def collective_fits(sources: Sources) -> tuple[CollectiveFit, ...]:
    """Return the authors' formulas as laws of 2, 4 and 8 ranks; sending: between two."""
    laws = []
    for i, row in _lines(
        sources, "collectives_nvlink", "op", "gbps", "scale", "offset", "efficiency", "latency_us",
        "fixed_latency_us",
    ):  # fmt: skip
        rate = number(i, row, "gbps") * GIB * number(i, row, "efficiency")
        us_per_mib = 1e6 * MIB * number(i, row, "scale") / rate
        latency_us = number(i, row, "latency_us")
        if row["op"] == "p2p":
            laws.append(CollectiveFit(
                op="send_recv", nodes=1, per_node=2, kind="assumed",
                latency_us=rounded(latency_us, 6),
                us_per_mib=(rounded(us_per_mib * BOTH_DIRECTIONS, 6),),
                min_bytes=FITTED_BYTES[0], max_bytes=FITTED_BYTES[1],
                error=COLLECTIVE_RELATED.error,
            ))  # fmt: skip
        elif row["op"] in ("all_reduce", "all_gather", "reduce_scatter"):
            laws += [_collective(i, row, ranks, us_per_mib, latency_us) for ranks in RANKS]
    return tuple(sorted(laws, key=lambda law: law.group))


def _collective(
    line: int, row: Line, ranks: int, us_per_mib: float, latency_us: float
) -> CollectiveFit:
    offset = float(row["offset"])
    step_us = latency_us * (ranks + offset) * number(line, row, "scale")
    return CollectiveFit(
        op=row["op"],  # type: ignore[arg-type]  # the caller checks it
        nodes=1, per_node=ranks,
        latency_us=rounded(step_us + number(line, row, "fixed_latency_us"), 6),
        us_per_mib=(rounded(us_per_mib * (1 + offset / ranks), 6),),
        min_bytes=FITTED_BYTES[0], max_bytes=FITTED_BYTES[1], error=COLLECTIVE_ERROR,
    )  # fmt: skip
