"""The bundled B200 profile: one node's op tables, which SimuMax published; the rest assumed."""

from __future__ import annotations

from typing import Final

from lab.fits.common import ASSUMED_ERROR, CREATED, SIMUMAX, Sources
from lab.fits.contention import assumed_law
from lab.fits.h200 import h200_contention
from lab.fits.launch import launch_section
from lab.fits.measured import attained_gb_s, h200_ops
from lab.fits.power import Cap, capped_section
from lab.fits.simumax import (
    COLLECTIVE_ERROR,
    STREAMED,
    attention_fit,
    attention_rows,
    collective_fits,
    gemm_rows,
    pointwise_fits,
)  # fmt: skip
from simulator.lookup.expected import POINTWISE_DEFAULT
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    ContentionSection,
    GemmSection,
    Machine,
    PointwiseSection,
    Profile,
)  # fmt: skip
from simulator.provenance import Provenance

MACHINE: Final = Machine(
    gpu="B200 SXM 192 GB",
    gpus_per_node=8,
    gpu_memory_gib=178.0,
    sm_count=148,
    peak_tflops={"bf16": 2250.0, "fp16": 2250.0, "fp32": 75.0, "fp64": 37.0},
    memory_bandwidth_gb_s=8000.0,
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
CAP: Final = Cap(
    boost_mhz=1965, cap_w=1000.0, boost_kind="assumed", from_us=(100.0, 1200.0), lasting_mhz=1459,
    heats=True,
)  # fmt: skip
"""Lasting: as far below boost as our H200's, 1,470 of 1,980 MHz."""


def b200_profile(sources: Sources) -> Profile:
    """Return the profile of the published tables; what they lack is our H200's."""
    h200, rows = h200_ops(sources), gemm_rows(sources)
    attention, gap_us = attention_fit(attention_rows(sources), MACHINE.sm_count)
    pointwise, like = pointwise_fits(sources, h200, MACHINE, ASSUMED_ERROR)
    faster = MACHINE.memory_bandwidth_gb_s / h200.machine.memory_bandwidth_gb_s
    contention = assumed_law(
        h200_contention(sources), sm_count=MACHINE.sm_count,
        attained_gb_s=attained_gb_s(h200) * faster,
    )  # fmt: skip
    return Profile(
        name="b200-sxm",
        created=CREATED,
        machine=MACHINE,
        gemm=GemmSection(
            rows=rows,
            provenance=Provenance(
                kind="imported",
                source=f"{len(rows)} GEMMs of {SIMUMAX}, run by TransformerEngine; rows: Copyright "
                "(c) 2023-2024 Moore Threads Technology Co., Ltd",
                clock="not recorded: means of runs one after the other, so nearer to a lasting "
                "load than to a burst",
                note="Rows as published: kernels differ by up to a factor of two from shape to "
                "shape, which no law tells, so that other shapes are unsure. Nearly all have 4,096 "
                "tokens or more. Weight gradients that add to bf16 stand for those that overwrite: "
                "they move as many bytes as writing fp32 once.",
            ),
        ),
        attention=AttentionSection(
            fit=attention,
            provenance=Provenance(
                kind="fitted",
                source=f"causal attention of {SIMUMAX}, run by TransformerEngine, heads of 128",
                error=attention.error,
                clock="not recorded: single ops, the host waiting for each",
                note="Timings are spans from an op's first kernel to its last one, each issued "
                f"after the one before had ended. Forward, {gap_us:.0f} us of that do not depend "
                "on the shape, which backward does not show: gaps on the host, taken out, as a "
                "trainer's host runs ahead. Rows of contiguous q, k, v: rotary embeddings write "
                "them so; others take 1 % more on average, 5 % at most. Other head sizes are "
                "assumed.",
            ),
        ),
        pointwise=PointwiseSection(
            fits=tuple(pointwise),
            provenance=Provenance(
                kind="fitted",
                source=f"memory-bound rates of {SIMUMAX}",
                error=POINTWISE_DEFAULT.error,
                note=f"One rate for {', '.join(STREAMED)}; one for cross entropy fused, one for "
                "not. The 30 us an op that SimuMax adds are not taken: it sets them for launches "
                "and gaps, which a host that runs ahead hides, and the launch section has the "
                f"host's time. {like.fixed_us:.1f} us instead, a kernel's own start and end on our "
                "H200. error: assumed, as ops of one rate differ. Other ops: assumed, H200's by "
                "memory bandwidth.",
            ),
        ),
        collectives=CollectiveSection(
            fits=collective_fits(sources),
            nic_gb_s=50.0,
            nic_latency_us=9.5,
            provenance=Provenance(
                kind="fitted",
                source=f"one node, NVLink: lines that {SIMUMAX} fitted to nccl-tests",
                error=COLLECTIVE_ERROR,
                note="The authors' formulas, exactly; their error is not published. error: what "
                "their way to fit a line does to H100 points of theirs, 1 MiB to 1 GiB, mostly "
                "below 16 MiB: a line's latency is too long for small messages. Assumed: a send, "
                "whose rate counts both directions of a link; several nodes: a 400 Gb/s NIC a "
                "rank, 9.5 us for each doubling of nodes.",
            ),
        ),
        contention=ContentionSection(
            fit=contention,
            provenance=Provenance(
                kind="assumed",
                source=f"the law of our H200, with {MACHINE.sm_count} SMs",
                error=ASSUMED_ERROR,
                note="Nothing was timed beside a collective on a B200. NCCL is taken to use "
                f"{contention.default_ctas} CTAs. A collective's own factor is "
                f"{contention.collective.error:.0%} off on average where collectives met GEMMs on "
                "our H200. Two collectives sharing links half speed each, not sharing them 1.1 "
                "times.",
            ),
        ),
        launch=launch_section(),
        power=capped_section(
            sources,
            CAP,
            "1,000 W by NVIDIA's data sheet; as our H200 in proportion to the cap",
            "SimuMax times a GEMM in a hundred runs one after the other: those that last 1.2 ms or "
            "more have nearly one rate at all shapes, a fourth below that of short ones. They are "
            "taken for timed at the cap, and short ones for faster by their rate.",
            rows,
        ),
    )
