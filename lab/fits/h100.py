"""The bundled H100 profile: DGX H100 nodes, one or several over 8×400 Gb/s InfiniBand."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

from domino_tune.measure.importers.tables import attention_csv, attention_pair_csv, gemm_csv
from lab.fits.attention import fit_attention
from lab.fits.common import rounded
from lab.fits.h200 import h200_ops
from lab.fits.h200_contention import (
    SOURCE,
    collective_slowdown,
    contention_records,
)
from lab.fits.hopper import TRANSFER_ERROR, backward_gemms, pointwise_laws
from lab.fits.multimem import multimem_collectives
from lab.fits.parts import (
    AICONFIGURATOR,
    OVERLAP,
    contention_law,
    eager_launch,
    gemm_section,
    node_collectives,
)
from lab.fits.power import hopper_power
from lab.fits.unshipped import a100_overlap, h100_nodes_all_reduce
from simulator.contention import Slowdown
from simulator.lookup.attention import AttentionFit
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

SM_COUNT = 132
CREATED = "2026-11-20"  # the newest date in the sources
NVLS_CTAS = 16
NIC_GB_S = 42.5
NIC_LATENCY_US = 9.5


def h100_profile(data: Path, measurements: Path) -> Profile:
    """Return the profile, fitted from the folder ``data`` and our records of an H200."""
    machine, h200 = _machine(), h200_ops(measurements)
    return Profile(
        name="h100-dgx",
        created=CREATED,
        machine=machine,
        gemm=_gemm(data, h200, machine),
        attention=_attention(data),
        pointwise=_pointwise(h200, machine),
        collectives=h100_collectives(data),
        contention=_contention(data, collective_slowdown(contention_records(measurements))),
        launch=eager_launch(),
        power=hopper_power(data, measured=False, rows=gemm_csv(_gemms(data).read_bytes()).rows),
    )


def _gemms(data: Path) -> Path:
    return data / "measured" / "h100_gemm_bf16.csv.gz"


def _gemm(data: Path, h200: Profile, machine: Machine) -> GemmSection:
    section = gemm_section(
        _gemms(data),
        SM_COUNT,
        clock="boost at first, not recorded: short bursts under a CUDA graph. Long GEMMs are "
        "slower by FLOP than middle ones: the power cap, in the law.",
        note="Timings of whole layers from 2024 (Vidur) are 16 % slower: not rescaled. dgrad and "
        "wgrad: the forward law times the ratio that our H200 showed for the shape, with fp32 "
        f"sums at this GPU's bandwidth; {TRANSFER_ERROR:.0%} more error for that.",
    )
    backward = backward_gemms(h200, section.fits[0], machine)
    fits = sorted((*section.fits, *backward), key=lambda f: (f.layout, f.dtype, f.accumulate))
    return replace(section, fits=tuple(fits))


def h100_attention_fit(data: Path) -> AttentionFit:
    """Return the forward law with the backward ratio."""
    forward = attention_csv(
        (data / "measured" / "h100_attention_fwd_causal_hd128.csv.gz").read_bytes()
    )
    pairs = attention_pair_csv((data / "measured" / "attention_fwd_bwd_hd128.csv").read_bytes())
    return fit_attention(forward.rows, pairs.rows, sm_count=SM_COUNT)


def _machine() -> Machine:
    return Machine(
        gpu="H100 SXM 80 GB",
        gpus_per_node=8,
        gpu_memory_gib=80.0,
        sm_count=SM_COUNT,
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


def _attention(data: Path) -> AttentionSection:
    fit = h100_attention_fit(data)
    return AttentionSection(
        fit=fit,
        provenance=Provenance(
            kind="fitted",
            source=f"FlashAttention-3 forward, causal, head 128: {AICONFIGURATOR}; "
            "backward/forward: FlashAttention's Hopper benchmark output",
            error=fit.error,
            note="The serving kernels that were timed read paged KV, so short sequences may be "
            "slower than in training. Backward: the ratio of non-causal shapes of 4k and more. "
            "Other head sizes are assumed.",
        ),
    )


def _pointwise(h200: Profile, machine: Machine) -> PointwiseSection:
    fits = pointwise_laws(h200, machine)
    fitted = [fit.error for fit in fits if fit.kind == "fitted"]
    return PointwiseSection(
        fits=fits,
        provenance=Provenance(
            kind="fitted",
            source=f"{SOURCE}, by memory bandwidth",
            error=rounded(statistics.fmean(fitted), 2),
            note="The same chip behind slower memory: rates within the L2 as there, beyond it by "
            "the ratio of the data sheets' bandwidths. Ops that are assumed there are assumed "
            "here. error: the mean of the fitted laws'.",
        ),
    )


def h100_collectives(data: Path) -> CollectiveSection:
    """Return collectives of one node (published tables) and of several (numbers fitted to some)."""
    node = node_collectives(data / "measured" / "h100_nccl_nvlink.csv")
    multimem = multimem_collectives(data / "measured" / "multimem")
    fits = tuple(
        sorted((*node, *h100_nodes_all_reduce(data), *multimem), key=lambda fit: fit.group)
    )
    reduce = [fit.error for fit in fits if fit.op == "all_reduce"]
    return CollectiveSection(
        fits=fits,
        nic_gb_s=NIC_GB_S,
        nic_latency_us=NIC_LATENCY_US,
        provenance=Provenance(
            kind="fitted",
            source=f"One node: NCCL 2.29.2, {AICONFIGURATOR}; 2, 4 and 8 nodes: all-reduce of "
            "NVIDIA/nccl-tests issue 309, defaults; multimem on 8 GPUs: microsoft/tokenweave "
            "@f483d1c (MIT), scatters and gathers at their best CTAs",
            error=float(f"{sum(reduce) / len(reduce):.2g}"),
            note="error: leave-one-out over the all-reduce laws, knots held. The node counts come "
            "from different sites, which differ by 10–20 % at 32 ranks. Over 8 nodes sizes below "
            "1 MiB continue the growth from 2 to 4. Assumed: gathers and scatters over nodes are "
            "half an all-reduce; groups with fewer than 8 ranks a node have a 400 Gb/s NIC a rank "
            "at 85 % and 9.5 us for each doubling of nodes.",
        ),
    )


def _contention(data: Path, collective: Slowdown) -> ContentionSection:
    overlapped = a100_overlap(data)
    fit = contention_law(
        overlapped.fit, sm_count=SM_COUNT, default_ctas=NVLS_CTAS, kind="assumed", error=0.15
    )
    return ContentionSection(
        fit=replace(fit, collective=replace(fit.collective, error=collective.error)),
        provenance=Provenance(
            kind="assumed",
            source=f"Law fitted on 4x A100 ({overlapped.cells} cells of {OVERLAP}), with H100's "
            "132 SMs",
            error=0.15,
            note="NCCL is taken to use 16 CTAs. A GEMM beside 24 CTAs then slows 1.7 times, as one "
            "reported H100 case did (80 to 47 % MFU). A collective's own factor is "
            f"{collective.error:.0%} off on average where collectives met GEMMs on our H200. "
            "Pointwise ops 1.15 times, two collectives sharing links half speed each, not sharing "
            "them 1.1 times: all assumed.",
        ),
    )
