"""Blackwell GPUs of today's racks and nodes, from tables of an inference planner's collectors.

GEMMs and attention forward are the GPU's own, backward is taken from a B200; so are kernels that
stream, since the memory is the same. Collectives: NCCL of a node or a tray, and of GB200's rack
beyond it, which stands for GB300's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from lab.fits.attention import fit_attention
from lab.fits.collectives import fit_group
from lab.fits.common import Floats, Gpu, Sources, rounded
from lab.fits.gemm import fit_curves
from lab.fits.power import burst_over_lasting
from lab.fits.quantized import Casts
from lab.fits.simumax import attention_rows
from simulator.lookup.attention import AttentionFit, AttentionRow
from simulator.lookup.collective_fit import MIB, CollectiveFit
from simulator.lookup.collectives import CollectiveRow
from simulator.lookup.gemm import GemmFit
from simulator.power import PowerSection

OPS: Final = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}  # fmt: skip
KERNEL: Final = "sgl"
"""Whose attention: TensorRT-LLM's rows write the cache, too."""
LEAST_ROWS: Final = 16384
"""Query rows of all heads, below which a launch is most of the time."""
LEAST_BACKWARD_US: Final = 300.0
"""Of timings that show the kernel, not gaps on the host."""
EXCHANGE_US: Final = (8, 12.0)
"""Ranks, and what a small all-to-all takes there with NCCL 2.29.2. The rack's rows are of a version
that took 66 us."""
EXCHANGE_ERROR: Final = 0.2
NEIGHBOUR: Final = 0.1
"""Error of a rack's law on the GPUs of another one, behind the same NVLink."""
COLLECTORS: Final = ("bf16_trt_us", "bf16_sgl_us")


class Gemms(NamedTuple):
    """The law of ``rows`` timings with their curves, and by how much collectors differ."""

    fit: GemmFit
    rows: int
    apart: float


def gemms(gpu: str, sources: Sources, sm_count: int) -> Gemms:
    """Return the law of the GPU's BF16 rows."""
    rows, apart = [], []
    for row in sources.rows(f"fp8/{gpu}_gemm_fp8.csv.gz"):
        rows.append((int(row["m"]), int(row["n"]), int(row["k"]), float(row["bf16_us"])))
        a, b = (float(row[name] or "nan") for name in COLLECTORS)
        apart.append(abs(a / b - 1))
    return Gemms(fit_curves(rows, sm_count), len(rows), rounded(float(np.nanmedian(apart)), 2))


def attention(gpu: str, sources: Sources, sm_count: int) -> AttentionFit:
    """Return the forward law of the GPU's rows; backward takes what TransformerEngine's took on a
    B200 over the same law there."""
    there = fit_attention(_attention("b200", sources), attention_rows(sources), sm_count=148)
    backward = [
        row for row in attention_rows(sources)
        if row.direction == "backward" and row.median_us > LEAST_BACKWARD_US
    ]  # fmt: skip
    forward = [
        replace(
            row, direction="forward",
            median_us=sum(there.shares_us(row.signature._replace(direction="forward"))),
        )
        for row in backward
    ]  # fmt: skip
    return fit_attention(_attention(gpu, sources), [*forward, *backward], sm_count=sm_count)


def _attention(gpu: str, sources: Sources) -> list[AttentionRow]:
    table = "fp8" if gpu == "b200" else "blackwell"
    rows = [
        AttentionRow(
            batch=int(row["batch"]), heads=int(row["heads"]), kv_heads=int(row["kv_heads"]),
            seq=int(row["seq"]), head_dim=128, median_us=float(row["bf16_us"]),
        )
        for row in sources.rows(f"{table}/attention_forward.csv.gz")
        if (row["gpu"], row["kernel"]) == (gpu, KERNEL) and row["bf16_us"]
    ]  # fmt: skip
    return [row for row in rows if row.batch * row.heads * row.seq >= LEAST_ROWS]


def collectives(gpu: Gpu, sources: Sources) -> Iterator[CollectiveFit]:
    """Yield the laws of a node or tray, and of a rack where the GPU is in one."""
    name = gpu.name.partition("-")[0]
    yield from _collectives(sources, "nccl_nvlink", name)
    if gpu.machine.gpus_per_domain:
        rack = map(_exchange, _collectives(sources, "gb200_nccl_nvl72"))
        yield from rack if name == "gb200" else map(_neighbour, rack)


def _collectives(sources: Sources, table: str, gpu: str = "") -> Iterator[CollectiveFit]:
    """Yield the law of each op and number of ranks; int8 cannot use NVLink SHARP."""
    groups: dict[tuple[str, int], list[CollectiveRow]] = {}
    for row in sources.rows(f"blackwell/{table}.csv.gz"):
        if row["dtype"] == "int8" or row.get("gpu", "") != gpu:
            continue
        made = CollectiveRow(
            op=OPS[row["op"]],  # type: ignore[arg-type]  # a table of them
            nodes=1, per_node=int(row["ranks"]), bytes=int(row["bytes"]),
            median_us=float(row["us"]),
        )  # fmt: skip
        groups.setdefault((made.op, made.per_node), []).append(made)
    for rows in groups.values():
        yield fit_group(rows)


def _exchange(fit: CollectiveFit) -> CollectiveFit:
    """Return an all-to-all's law with the latency of a current one, which grows with the steps, and
    the rate of the largest message, which no latency hides."""
    if fit.op != "all_to_all":
        return fit
    ranks, latency_us = EXCHANGE_US
    latency_us *= math.log2(fit.per_node) / math.log2(ranks)
    most_us = fit.latency_us + fit.transfer_us(fit.max_bytes)
    return replace(
        fit, latency_us=rounded(latency_us), knots_bytes=(), kind="assumed", error=EXCHANGE_ERROR,
        us_per_mib=(rounded(most_us * MIB / fit.max_bytes),),
    )  # fmt: skip


def _neighbour(fit: CollectiveFit) -> CollectiveFit:
    return replace(fit, kind="assumed", error=max(NEIGHBOUR, fit.error))


def power(gpu: Gpu, sources: Sources, section: PowerSection) -> PowerSection:
    """Return the section with the clock of the timings, bursts, by what calls that were repeated
    for a second took longer."""
    clock = _burst_mhz(gpu, sources, BF16)
    rows = [
        row._replace(clock_mhz=clock) if row.family in ("gemm", "attention") else row
        for row in section.row_clocks
    ]
    return replace(section, row_clocks=tuple(rows), gemm_mhz=gemm_mhz(gpu, sources))


def gemm_mhz(gpu: Gpu, sources: Sources) -> dict[str, float]:
    """Return the clock of bursts in FP8 and NVFP4; all scalings of FP8 are alike."""
    tensor, fp4 = (_burst_mhz(gpu, sources, one) for one in (FP8, NVFP4))
    return {"fp8_tensor": tensor, "fp8_block": tensor, "mxfp8": tensor, "nvfp4": fp4}


def _burst_mhz(gpu: Gpu, sources: Sources, how: Repeated) -> float:
    told = gpu.told["power"]
    slower = burst_over_lasting(_repeated(told["like"], sources, how))
    return rounded(told["cap"]["lasting_mhz"] * slower)


class Repeated(NamedTuple):
    """TensorRT-LLM's GEMMs that were timed in bursts and repeated: the column of the first, the
    dtype of the second, and the math of their casts."""

    column: str
    dtype: str
    math: str = ""


BF16: Final = Repeated("bf16_trt_us", "bf16")
FP8: Final = Repeated("fp8_tensor_us", "fp8", "fp8_tensor")
NVFP4: Final = Repeated("nvfp4_trt_us", "nvfp4", "nvfp4")


def _repeated(gpu: str, sources: Sources, how: Repeated) -> Iterator[tuple[float, float]]:
    """Yield (us in a burst, us repeated) of the GPU's GEMMs, without casts, which the clock does
    not change."""
    casts = Casts(gpu, sources)
    bursts = {
        (row["m"], row["n"], row["k"]): float(row[how.column])
        for row in sources.rows(f"fp8/{gpu}_gemm_fp8.csv.gz")
        if row[how.column]
    }
    for row in sources.rows("blackwell/gemm_power.csv.gz"):
        shape = (row["m"], row["n"], row["k"])
        if (row["gpu"], row["kernel"], row["dtype"]) != (gpu, "trt", how.dtype):
            continue
        if shape in bursts:
            cast_us = casts.us(how.math, int(row["m"]), int(row["k"])) if how.math else 0.0
            yield bursts[shape] - cast_us, float(row["us"]) - cast_us


def sources_differ(sources: Sources, rows: Sequence[Any]) -> tuple[float, float]:
    """Return how many times as long a B200's looped GEMMs take as bursts of the same shapes, and
    what of that bursts' higher clock explains."""
    bursts = {
        (int(row["m"]), int(row["n"]), int(row["k"])): float(row["bf16_us"])
        for row in sources.rows("fp8/b200_gemm_fp8.csv.gz")
    }
    ratios: Floats = np.array([
        row.median_us / bursts[row[:3]] for row in rows
        if row.layout == "forward" and row[:3] in bursts
    ])  # fmt: skip
    explained = burst_over_lasting(_repeated("b200", sources, BF16))
    return rounded(float(np.median(ratios)), 3), rounded(explained, 3)
