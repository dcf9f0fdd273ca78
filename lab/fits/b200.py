"""The bundled B200 profile: one node's op tables, which SimuMax published; the rest assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from domino_tune.measure.importers.tables import Line, count, microseconds, number, records
from lab.fits.attention import fit_attention
from lab.fits.common import rounded
from lab.fits.h100 import CREATED, NIC_LATENCY_US
from lab.fits.h200 import attained_gb_s, h200_ops
from lab.fits.h200_contention import contention_records, h200_contention
from lab.fits.hopper import pointwise_laws
from lab.fits.parts import ASSUMED_ERROR, eager_launch
from lab.fits.power import b200_power
from simulator.lookup.attention import AttentionFit, AttentionRow
from simulator.lookup.collectives import MIB, CollectiveFit
from simulator.lookup.expected import COLLECTIVE_RELATED, POINTWISE_DEFAULT
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import DEFAULT, PointwiseFit
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    ContentionSection,
    GemmSection,
    Machine,
    PointwiseSection,
    Profile,
)
from simulator.provenance import Provenance

SIMUMAX: Final = "MooreThreads/SimuMax @4dcaae5 (Apache-2.0)"
SM_COUNT: Final = 148
MEMORY_GB_S: Final = 8000.0
NIC_GB_S: Final = 50.0
GIB: Final = 1 << 30
GEMM_SCATTER: Final = 0.04
"""Spread of a GEMM row. The table has 82 weight gradients twice, adding to fp32 and to bf16: their
ratios scatter by 5.5 % (robust) around the median, which is 3.9 % for each of the two."""
RUNS: Final = 2
"""A GEMM row is the mean of several runs; how many is not published."""
ADDS_TO: Final = {"fp32": True, "bf16": False}
"""Type of a weight gradient's C -> whether we count it as adding. One that adds to bf16 reads and
writes as many bytes as one that writes fp32 once: it stands for those that overwrite."""
STREAMED: Final = (
    "add", "copy", DEFAULT, "gelu", "gelu_bwd", "layernorm", "layernorm_bwd", "relu", "relu_bwd",
    "rmsnorm", "rmsnorm_bwd", "rope", "rope_bwd", "swiglu", "swiglu_bwd",
)  # fmt: skip
"""Ops of the table's rate ``default``: norms, activations, adds."""
RATES: Final = (
    (STREAMED, "default"),
    (("fused_cross_entropy",), "ce_fusion"),
    (("unfused_cross_entropy",), "ce"),
)
"""Ops -> name of their rate. TransformerEngine's fused cross entropy: SimuMax counts 8 bytes a
logit for it, as our three passes move. Megatron-LM's own: it counts 52, we 56."""
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


def b200_profile(data: Path, measurements: Path) -> Profile:
    """Return the profile, from the folder ``data`` and our records of an H200."""
    tables = data / "measured" / "b200"
    machine, h200 = _machine(), h200_ops(measurements)
    return Profile(
        name="b200-sxm",
        created=CREATED,
        machine=machine,
        gemm=_gemm(gemm_rows(tables)),
        attention=_attention(attention_rows(tables)),
        pointwise=_pointwise(tables, h200, machine),
        collectives=_collectives(tables),
        contention=_contention(measurements, h200),
        launch=eager_launch(),
        power=b200_power(data, gemm_rows(tables)),
    )


def _machine() -> Machine:
    return Machine(
        gpu="B200 SXM 192 GB",
        gpus_per_node=8,
        gpu_memory_gib=178.0,
        sm_count=SM_COUNT,
        peak_tflops={"bf16": 2250.0, "fp16": 2250.0, "fp32": 75.0, "fp64": 37.0},
        memory_bandwidth_gb_s=MEMORY_GB_S,
        backend="nccl",
        l2_mb=126.0,
        details={
            "node": "8 GPUs on NVSwitch, NVLink 5",
            "memory": "178.35 GiB, 126 MB L2 and 148 SMs as the driver reports them (pytorch/ao, "
            "pull request 4002); data sheets say 192 GB for the chip, 180 GB for DGX B200",
            "bandwidth": "8 TB/s as NVIDIA's data sheet of DGX B200 says; the driver's bus and "
            "clock give 7.67 TB/s",
            "network": "8 x 400 Gb/s a node, one NIC a GPU (assumed)",
            "measured": "by SimuMax: TransformerEngine 2.11, torch 2.10",
        },
    )


def _lines(path: Path, *columns: str) -> list[tuple[int, Line]]:
    return list(records(path.read_bytes(), columns))


def gemm_rows(tables: Path) -> tuple[GemmRow, ...]:
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
            tables / "gemm_bf16.csv", "batch", "m", "n", "k", "layout", "out_dtype", "us"
        )
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: row.signature))


def _gemm(rows: tuple[GemmRow, ...]) -> GemmSection:
    return GemmSection(
        rows=rows,
        provenance=Provenance(
            kind="imported",
            source=f"{len(rows)} GEMMs of {SIMUMAX}, run by TransformerEngine; rows: Copyright (c) "
            "2023-2024 Moore Threads Technology Co., Ltd",
            clock="not recorded: means of runs one after the other, so nearer to a lasting load "
            "than to a burst",
            note="Rows as published: kernels differ by up to a factor of two from shape to shape, "
            "which no law tells, so that other shapes are unsure. Nearly all have 4,096 tokens or "
            "more. Weight gradients that add to bf16 stand for those that overwrite: they move as "
            "many bytes as writing fp32 once.",
        ),
    )


def attention_rows(tables: Path, *, contiguous: bool = True) -> list[AttentionRow]:
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
            tables / "attention_bf16.csv", "direction", "batch", "seq", "heads", "kv_heads",
            "head_dim", "qkv_contiguous", "us",
        )
        if row["qkv_contiguous"] == ("1" if contiguous else "0")
    ]  # fmt: skip


def attention_fit(rows: Sequence[AttentionRow]) -> tuple[AttentionFit, float]:
    """Return the law of the kernels, and the gap (us) that was taken out of forward timings."""
    forward = [row for row in rows if row.direction == "forward"]
    backward = [row for row in rows if row.direction == "backward"]
    gap_us = _fit(forward, rows).fixed_us
    kernels = [replace(row, median_us=row.median_us - gap_us) for row in forward]
    return replace(_fit(kernels, [*kernels, *backward]), fixed_us=0.0), gap_us


def _fit(forward: Sequence[AttentionRow], pairs: Sequence[AttentionRow]) -> AttentionFit:
    return fit_attention(
        forward, pairs, sm_count=SM_COUNT, withheld_by=lambda row: (row.seq, row.heads)
    )


def _attention(rows: Sequence[AttentionRow]) -> AttentionSection:
    fit, gap_us = attention_fit(rows)
    return AttentionSection(
        fit=fit,
        provenance=Provenance(
            kind="fitted",
            source=f"causal attention of {SIMUMAX}, run by TransformerEngine, heads of 128",
            error=fit.error,
            clock="not recorded: single ops, the host waiting for each",
            note="Timings are spans from an op's first kernel to its last one, each issued after "
            f"the one before had ended. Forward, {gap_us:.0f} us of that do not depend on the "
            "shape, which backward does not show: gaps on the host, taken out, as a trainer's "
            "host runs ahead. Rows of contiguous q, k, v: rotary embeddings write them so; others "
            "take 1 % more on average, 5 % at most. Other head sizes are assumed.",
        ),
    )


def rates_gb_s(tables: Path) -> dict[str, float]:
    """Return the rate of each kind of memory-bound op, in 1e9 bytes a second."""
    return {
        row["op"]: rounded(number(i, row, "gbps") * GIB * number(i, row, "efficiency") / 1e9)
        for i, row in _lines(tables / "memory_bound.csv", "op", "gbps", "efficiency")
    }


def _pointwise(tables: Path, h200: Profile, machine: Machine) -> PointwiseSection:
    rates = rates_gb_s(tables)
    scaled = {law.names[0]: law for law in pointwise_laws(h200, machine)}
    own = [_streamed(names, rates[rate], scaled[LIKE]) for names, rate in RATES]
    others = [
        replace(law, kind="assumed", error=max(law.error, ASSUMED_ERROR))
        for name, law in scaled.items()
        if not any(name in names for names, _ in RATES)
    ]
    return PointwiseSection(
        fits=tuple(sorted((*own, *others), key=lambda law: law.names)),
        provenance=Provenance(
            kind="fitted",
            source=f"memory-bound rates of {SIMUMAX}",
            error=POINTWISE_DEFAULT.error,
            note=f"One rate for {', '.join(STREAMED)}; one for cross entropy fused, one for not. "
            "The 30 us an op that SimuMax adds are not taken: it sets them for launches and gaps, "
            "which a host that runs ahead hides, and the launch section has the host's time. "
            f"{scaled[LIKE].fixed_us:.1f} us instead, a kernel's own start and end on our H200. "
            "error: assumed, as ops of one rate differ. Other ops: assumed, H200's by memory "
            "bandwidth.",
        ),
    )


def _streamed(names: tuple[str, ...], gb_s: float, like: PointwiseFit) -> PointwiseFit:
    return replace(
        like, names=names, kind="fitted", small_gb_s=gb_s, knee_bytes=1, large_gb_s=gb_s,
        error=POINTWISE_DEFAULT.error,
    )  # fmt: skip


def collective_fits(tables: Path) -> tuple[CollectiveFit, ...]:
    """Return the authors' formulas as laws of 2, 4 and 8 ranks; sending: between two."""
    columns = (
        "op", "gbps", "scale", "offset", "efficiency", "latency_us", "fixed_latency_us",
    )  # fmt: skip
    laws = []
    for i, row in _lines(tables / "collectives_nvlink.csv", *columns):
        if row["op"] == "p2p":
            laws.append(_send(i, row))
        elif row["op"] in ("all_reduce", "all_gather", "reduce_scatter"):
            laws += [_collective(i, row, ranks) for ranks in RANKS]
    return tuple(sorted(laws, key=lambda law: law.group))


def _us_per_mib(line: int, row: Line) -> float:
    rate = number(line, row, "gbps") * GIB * number(line, row, "efficiency")
    return 1e6 * MIB * number(line, row, "scale") / rate


def _collective(line: int, row: Line, ranks: int) -> CollectiveFit:
    offset, scale = float(row["offset"]), number(line, row, "scale")
    latency_us = number(line, row, "latency_us") * (ranks + offset) * scale
    return CollectiveFit(
        op=row["op"],  # type: ignore[arg-type]  # the caller checks it
        nodes=1, per_node=ranks,
        latency_us=rounded(latency_us + number(line, row, "fixed_latency_us"), 6),
        us_per_mib=(rounded(_us_per_mib(line, row) * (1 + offset / ranks), 6),),
        min_bytes=FITTED_BYTES[0], max_bytes=FITTED_BYTES[1], error=COLLECTIVE_ERROR,
    )  # fmt: skip


def _send(line: int, row: Line) -> CollectiveFit:
    return CollectiveFit(
        op="send_recv", nodes=1, per_node=2, kind="assumed",
        latency_us=rounded(number(line, row, "latency_us"), 6),
        us_per_mib=(rounded(_us_per_mib(line, row) * BOTH_DIRECTIONS, 6),),
        min_bytes=FITTED_BYTES[0], max_bytes=FITTED_BYTES[1], error=COLLECTIVE_RELATED.error,
    )  # fmt: skip


def _collectives(tables: Path) -> CollectiveSection:
    return CollectiveSection(
        fits=collective_fits(tables),
        nic_gb_s=NIC_GB_S,
        nic_latency_us=NIC_LATENCY_US,
        provenance=Provenance(
            kind="fitted",
            source=f"one node, NVLink: lines that {SIMUMAX} fitted to nccl-tests",
            error=COLLECTIVE_ERROR,
            note="The authors' formulas, exactly; their error is not published. error: what their "
            "way to fit a line does to H100 points of theirs, 1 MiB to 1 GiB, mostly below 16 MiB: "
            "a line's latency is too long for small messages. Assumed: a send, whose rate counts "
            "both directions of a link; several nodes: a 400 Gb/s NIC a rank, 9.5 us for each "
            "doubling of nodes.",
        ),
    )


def _contention(measurements: Path, h200: Profile) -> ContentionSection:
    attained = attained_gb_s(h200)
    law = h200_contention(contention_records(measurements), attained).fit
    here = attained * MEMORY_GB_S / h200.machine.memory_bandwidth_gb_s
    fit = replace(
        law,
        sm_count=SM_COUNT,
        compute=tuple(replace(one, kind="assumed", error=ASSUMED_ERROR) for one in law.compute),
        memory=law.memory
        and replace(law.memory, attained_gb_s=rounded(here), kind="assumed", error=ASSUMED_ERROR),
    )
    return ContentionSection(
        fit=fit,
        provenance=Provenance(
            kind="assumed",
            source=f"the law of our H200, with {SM_COUNT} SMs",
            error=ASSUMED_ERROR,
            note="Nothing was timed beside a collective on a B200. NCCL is taken to use "
            f"{fit.default_ctas} CTAs. A collective's own factor is {fit.collective.error:.0%} off "
            "on average where collectives met GEMMs on our H200. Two collectives sharing links "
            "half speed each, not sharing them 1.1 times.",
        ),
    )
