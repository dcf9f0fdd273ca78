"""The bundled A100 profile: one NVSwitch node measured, several nodes assumed."""

from __future__ import annotations

from typing import Final

from domino_tune.measure.importers.tables import gemm_csv
from lab.fits.attention import assumed_on
from lab.fits.collectives import collective_section
from lab.fits.common import AICONFIGURATOR, ASSUMED_ERROR, CREATED, OVERLAP, Sources
from lab.fits.contention import overlap_law
from lab.fits.gemm import gemm_section
from lab.fits.h100 import MACHINE as H100
from lab.fits.h100 import h100_attention
from lab.fits.launch import launch_section
from lab.fits.measured import h200_ops
from lab.fits.pointwise import transferred
from lab.fits.power import Cap, capped_section
from lab.fits.unshipped import A100_SMS, a100_overlap, collectives_of
from simulator.profile import (
    AttentionSection,
    ContentionSection,
    Machine,
    PointwiseSection,
    Profile,
)  # fmt: skip
from simulator.provenance import Provenance

GEMMS: Final = "a100_gemm_bf16.csv.gz"
NCCL_CTAS: Final = 24
MACHINE: Final = Machine(
    gpu="A100 SXM 80 GB",
    gpus_per_node=8,
    gpu_memory_gib=80.0,
    sm_count=A100_SMS,
    peak_tflops={"bf16": 312.0, "fp16": 312.0, "fp32": 19.5, "fp64": 19.5},
    memory_bandwidth_gb_s=2039.0,
    backend="nccl",
    l2_mb=40.0,
    details={
        "node": "8 GPUs on NVSwitch",
        "network": "8 x 200 Gb/s InfiniBand a node, one NIC a GPU (assumed)",
    },
)
CAP: Final = Cap(
    boost_mhz=1410, cap_w=400.0, boost_kind="imported", from_us=(700.0, 1500.0),
    lasting_mhz=1275, heats=True,
)  # fmt: skip
"""Lasting: between the clocks of large GEMMs at the cap, 1,200 and 1,350 MHz, 1,410 MHz requested
(data/measured/power_points.csv)."""


def a100_profile(sources: Sources) -> Profile:
    """Return the profile of the published tables; what they lack is H100's and our H200's."""
    overlapped = a100_overlap(sources)
    fit = overlapped.fit
    return Profile(
        name="a100-sxm",
        created=CREATED,
        machine=MACHINE,
        gemm=gemm_section(
            sources.table(GEMMS),
            MACHINE,
            clock="boost at first, not recorded: short bursts under a CUDA graph",
            note="dgrad is assumed to cost what the forward GEMM of its shape does, wgrad that and "
            "the bytes of its fp32 sums.",
        ),
        attention=AttentionSection(
            fit=assumed_on(h100_attention(sources), H100, MACHINE),
            provenance=Provenance(
                kind="assumed",
                source="The H100 law, rates by peak FLOP/s and row cost by memory bandwidth",
                error=ASSUMED_ERROR,
                note="FlashAttention-2 on A100 reaches about the same share of the peak as "
                "FlashAttention-3 on H100.",
            ),
        ),
        pointwise=PointwiseSection(
            fits=tuple(transferred(h200_ops(sources), MACHINE, least_error=ASSUMED_ERROR)),
            provenance=Provenance(
                kind="assumed",
                source="The laws of an H200: rates within its L2, beyond it by memory bandwidth",
                error=ASSUMED_ERROR,
            ),
        ),
        collectives=collective_section(
            sources.table("a100_nccl_nvlink.csv"),
            collectives_of(sources, "a100_all_reduce_by_ctas"),
            nic=(21.25, 9.5),
            source=f"One node: {AICONFIGURATOR}; by NCCL CTAs on 4 GPUs at 1410 MHz: {OVERLAP}",
            note="By CTAs, 8 MiB and more was timed; up to 64 KiB, NCCL's own choice of CTAs "
            "stands in. Several nodes are assumed: a 200 Gb/s NIC a rank at 85 % and 9.5 us for "
            "each doubling of nodes.",
        ),
        contention=ContentionSection(
            fit=overlap_law(
                fit, sm_count=A100_SMS, default_ctas=NCCL_CTAS, kind="fitted",
                error=fit.leave_shape_out_error,
            ),
            provenance=Provenance(
                kind="fitted",
                source=f"{overlapped.cells} cells (12 GEMM shapes, 1–32 CTAs, 64 MiB all-reduce) "
                f"of {OVERLAP}",
                error=fit.leave_shape_out_error,
                note="4 GPUs at 1200 MHz, communication stream first and at high priority; error: "
                f"each shape predicted from the others; {fit.constant_us:g} us an iteration belong "
                "to the experiment. NCCL's own choice is taken as 24 CTAs (its time lies between "
                "16 and 32). Pointwise ops 1.15 times, two collectives sharing links half speed "
                "each, not sharing them 1.1 times: assumed.",
            ),
        ),
        launch=launch_section(),
        power=capped_section(
            sources,
            CAP,
            "large GEMMs at 1,200 to 1,350 MHz and 400 W (Evansika959/aiconfigurator_overlap_exp); "
            "else as our H200 in proportion to the cap",
            "Long GEMMs of the table run at the rate that is published for normal random inputs "
            "after a long run, 257 TFLOP/s: they are taken for timed at the cap.",
            gemm_csv(sources.table(GEMMS)).rows,
        ),
    )  # fmt: skip
