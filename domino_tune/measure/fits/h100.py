"""The bundled H100 profile: DGX H100 nodes, one or several over 8×400 Gb/s InfiniBand."""

from __future__ import annotations

from pathlib import Path

from domino_tune.measure.fits.attention import fit_attention
from domino_tune.measure.fits.parts import (
    AICONFIGURATOR,
    OVERLAP,
    VIDUR,
    contention_law,
    eager_launch,
    gemm_section,
    node_collectives,
    pointwise_fits,
)
from domino_tune.measure.fits.unshipped import a100_overlap, h100_nodes_all_reduce
from domino_tune.measure.importers.tables import attention_csv, attention_pair_csv
from simulator.lookup.attention import AttentionFit
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    ContentionSection,
    Machine,
    PointwiseSection,
    Profile,
    Provenance,
)

SM_COUNT = 132
CREATED = "2025-06-18"  # the newest date in the sources
NVLS_CTAS = 16
NIC_GB_S = 42.5
NIC_LATENCY_US = 9.5


def h100_profile(data: Path) -> Profile:
    """Return the profile, fitted from the folder ``data``."""
    return Profile(
        name="h100-dgx",
        created=CREATED,
        machine=_machine(),
        gemm=gemm_section(
            data / "measured" / "h100_gemm_bf16.csv.gz",
            SM_COUNT,
            "Forward layout, short bursts under a CUDA graph at boost clock; 2024 layer timings "
            "(Vidur) are 10–15 % slower and sustained training may be too: not rescaled. dgrad "
            "and wgrad are assumed to cost what the forward GEMM of their shape does.",
        ),
        attention=_attention(data),
        pointwise=_pointwise(data),
        collectives=_collectives(data),
        contention=_contention(data),
        launch=eager_launch(),
    )


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


def _pointwise(data: Path) -> PointwiseSection:
    fits = pointwise_fits(data / "measured" / "h100_pointwise_llama2.csv.gz")
    return PointwiseSection(
        fits=fits,
        provenance=Provenance(
            kind="fitted",
            source=f"Llama-2 7B and 70B layers, fp16, forward: {VIDUR}",
            error=max(fit.error for fit in fits if fit.kind == "fitted"),
            note="1 us resolution, 2024 serving kernels. Assumed: backward ops stream their bytes "
            "as the forward op does; LayerNorm's forward, dropout, loss and optimizer stream as "
            "the residual add; GELU and ReLU as SwiGLU.",
        ),
    )


def _collectives(data: Path) -> CollectiveSection:
    node = node_collectives(data / "measured" / "h100_nccl_nvlink.csv")
    fits = tuple(sorted((*node, *h100_nodes_all_reduce(data)), key=lambda fit: fit.group))
    reduce = [fit.error for fit in fits if fit.op == "all_reduce"]
    return CollectiveSection(
        fits=fits,
        nic_gb_s=NIC_GB_S,
        nic_latency_us=NIC_LATENCY_US,
        provenance=Provenance(
            kind="fitted",
            source=f"One node: NCCL 2.29.2, {AICONFIGURATOR}; 2, 4 and 8 nodes: all-reduce of "
            "NVIDIA/nccl-tests issue 309, defaults",
            error=float(f"{sum(reduce) / len(reduce):.2g}"),
            note="error: leave-one-out over the all-reduce laws, knots held. The node counts come "
            "from different sites, which differ by 10–20 % at 32 ranks. Over 8 nodes sizes below "
            "1 MiB continue the growth from 2 to 4. Assumed: gathers and scatters over nodes are "
            "half an all-reduce; groups with fewer than 8 ranks a node have a 400 Gb/s NIC a rank "
            "at 85 % and 9.5 us for each doubling of nodes.",
        ),
    )


def _contention(data: Path) -> ContentionSection:
    overlapped = a100_overlap(data)
    return ContentionSection(
        fit=contention_law(
            overlapped.fit, sm_count=SM_COUNT, default_ctas=NVLS_CTAS, kind="assumed", error=0.15
        ),
        provenance=Provenance(
            kind="assumed",
            source=f"Law fitted on 4x A100 ({overlapped.cells} cells of {OVERLAP}), with H100's "
            "132 SMs",
            error=0.15,
            note="NCCL is taken to use 16 CTAs. A GEMM beside 24 CTAs then slows 1.7 times, as one "
            "reported H100 case did (80 to 47 % MFU). Pointwise ops 1.15 times, two collectives "
            "sharing links half speed each, not sharing them 1.1 times: all assumed.",
        ),
    )
