"""The bundled H100 profile: DGX H100 nodes, one or several over 8×400 Gb/s InfiniBand."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Final

from domino_tune.measure.importers.tables import attention_csv, attention_pair_csv, gemm_csv
from lab.fits.attention import fit_attention
from lab.fits.collectives import collective_section, multimem_collectives
from lab.fits.common import AICONFIGURATOR, CREATED, OURS, OVERLAP, TRANSFER_ERROR, Sources, rounded
from lab.fits.contention import ASSUMED_SLOWDOWN, NVLS_CTAS, collective_slowdown, overlap_law
from lab.fits.gemm import gemm_section
from lab.fits.launch import launch_section
from lab.fits.measured import h200_ops
from lab.fits.pointwise import transferred
from lab.fits.power import Cap, capped_section
from lab.fits.unshipped import a100_overlap, collectives_of
from simulator.lookup.attention import AttentionFit
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    ContentionSection,
    Machine,
    PointwiseSection,
    Profile,
)  # fmt: skip
from simulator.provenance import Provenance

GEMMS: Final = "h100_gemm_bf16.csv.gz"
MACHINE: Final = Machine(
    gpu="H100 SXM 80 GB",
    gpus_per_node=8,
    gpu_memory_gib=80.0,
    sm_count=132,
    peak_tflops={"bf16": 989.4, "fp16": 989.4, "fp32": 66.9, "fp64": 66.9},
    memory_bandwidth_gb_s=3350.0,
    backend="nccl",
    l2_mb=50.0,
    details={
        "node": "DGX H100: 8 GPUs on NVSwitch (NVLink SHARP)",
        "network": "8 x 400 Gb/s InfiniBand a node, one NIC a GPU",
        "nccl": "2.29.2 in a node; 2.26.2 over 2 and 4 nodes; not stated over 8",
    },
)
CAP: Final = Cap(
    boost_mhz=1980, cap_w=700.0, boost_kind="assumed", from_us=(700.0, 1500.0, 8000.0)
)  # fmt: skip
STATE: Final = (
    "our H200's record: 1,470 MHz, 690 of 700 W and 666 TFLOP/s after a long run, 790 in the first "
    "20 ms, 134 W at rest"
)
STATE_NOTE: Final = (
    "A timing's clock is that at which GEMMs that last would run at its FLOP/s; of an H100, long "
    "ones by the table itself."
)


def h100_profile(sources: Sources) -> Profile:
    """Return the profile of the published tables; what they lack is A100's and our H200's."""
    h200 = h200_ops(sources)
    attention, pointwise = h100_attention(sources), transferred(h200, MACHINE)
    fitted = [fit.error for fit in pointwise if fit.kind == "fitted"]
    overlapped, collective = a100_overlap(sources), collective_slowdown(sources.ours("contention"))
    contention = overlap_law(
        overlapped.fit, sm_count=MACHINE.sm_count, default_ctas=NVLS_CTAS, kind="assumed",
        error=ASSUMED_SLOWDOWN,
    )  # fmt: skip
    return Profile(
        name="h100-dgx",
        created=CREATED,
        machine=MACHINE,
        gemm=gemm_section(
            sources.table(GEMMS),
            MACHINE,
            clock="boost at first, not recorded: short bursts under a CUDA graph. Long GEMMs are "
            "slower by FLOP than middle ones: the power cap, in the law.",
            note="Timings of whole layers from 2024 (Vidur) are 16 % slower: not rescaled. dgrad "
            "and wgrad: the forward law times the ratio that our H200 showed for the shape, with "
            f"fp32 sums at this GPU's bandwidth; {TRANSFER_ERROR:.0%} more error for that.",
            backward_of=h200,
        ),
        attention=AttentionSection(
            fit=attention,
            provenance=Provenance(
                kind="fitted",
                source=f"FlashAttention-3 forward, causal, head 128: {AICONFIGURATOR}; "
                "backward/forward: FlashAttention's Hopper benchmark output",
                error=attention.error,
                note="The serving kernels that were timed read paged KV, so short sequences may be "
                "slower than in training. Backward: the ratio of non-causal shapes of 4k and more. "
                "Other head sizes are assumed.",
            ),
        ),
        pointwise=PointwiseSection(
            fits=tuple(pointwise),
            provenance=Provenance(
                kind="fitted",
                source=f"{OURS}, by memory bandwidth",
                error=rounded(statistics.fmean(fitted), 2),
                note="The same chip behind slower memory: rates within the L2 as there, beyond it "
                "by the ratio of the data sheets' bandwidths. Ops that are assumed there are "
                "assumed here. error: the mean of the fitted laws'.",
            ),
        ),
        collectives=h100_collectives(sources),
        contention=ContentionSection(
            fit=replace(
                contention, collective=replace(contention.collective, error=collective.error)
            ),
            provenance=Provenance(
                kind="assumed",
                source=f"Law fitted on 4x A100 ({overlapped.cells} cells of {OVERLAP}), with "
                "H100's 132 SMs",
                error=ASSUMED_SLOWDOWN,
                note="NCCL is taken to use 16 CTAs. A GEMM beside 24 CTAs then slows 1.7 times, as "
                "one reported H100 case did (80 to 47 % MFU). A collective's own factor is "
                f"{collective.error:.0%} off on average where collectives met GEMMs on our H200. "
                "Pointwise ops 1.15 times, two collectives sharing links half speed each, not "
                "sharing them 1.1 times: all assumed.",
            ),
        ),
        launch=launch_section(),
        power=capped_section(
            sources, CAP, f"{STATE}; an H100 SXM is assumed to be alike", STATE_NOTE,
            gemm_csv(sources.table(GEMMS)).rows,
        ),
    )  # fmt: skip


def h100_attention(sources: Sources) -> AttentionFit:
    """Return the forward law with the backward ratio."""
    forward = attention_csv(sources.table("h100_attention_fwd_causal_hd128.csv.gz"))
    pairs = attention_pair_csv(sources.table("attention_fwd_bwd_hd128.csv"))
    return fit_attention(forward.rows, pairs.rows, sm_count=MACHINE.sm_count)


def h100_collectives(sources: Sources) -> CollectiveSection:
    """Return collectives of one node (published tables) and of several (numbers fitted to some)."""
    nodes = collectives_of(sources, "h100_nodes_all_reduce")
    return collective_section(
        sources.table("h100_nccl_nvlink.csv"),
        (*nodes, *multimem_collectives(sources)),
        nic=(42.5, 9.5),
        source=f"One node: NCCL 2.29.2, {AICONFIGURATOR}; 2, 4 and 8 nodes: all-reduce of "
        "NVIDIA/nccl-tests issue 309, defaults; multimem on 8 GPUs: microsoft/tokenweave "
        "@f483d1c (MIT), scatters and gathers at their best CTAs",
        note="The node counts come from different sites, which differ by 10–20 % at 32 ranks. Over "
        "8 nodes sizes below 1 MiB continue the growth from 2 to 4. Assumed: gathers and scatters "
        "over nodes are half an all-reduce; groups with fewer than 8 ranks a node have a 400 Gb/s "
        "NIC a rank at 85 % and 9.5 us for each doubling of nodes.",
    )
