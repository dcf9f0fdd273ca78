"""The bundled A100 profile: one NVSwitch node measured, several nodes assumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from domino_tune.measure.importers.tables import collectives_csv, gemm_csv
from lab.fits.collectives import fit_collectives
from lab.fits.common import rounded
from lab.fits.h100 import CREATED, h100_attention_fit
from lab.fits.h200 import h200_ops
from lab.fits.hopper import pointwise_laws
from lab.fits.parts import (
    AICONFIGURATOR,
    ASSUMED_ERROR,
    OVERLAP,
    contention_law,
    eager_launch,
    gemm_section,
)
from lab.fits.power import a100_power
from lab.fits.unshipped import (
    A100_SMS,
    a100_all_reduce_by_ctas,
    a100_overlap,
)
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    ContentionSection,
    Machine,
    PointwiseSection,
    Profile,
)
from simulator.provenance import Provenance

PEAK_TFLOPS = 312.0
MEMORY_GB_S = 2039.0
H100_PEAK_TFLOPS = 989.4
H100_MEMORY_GB_S = 3350.0
NCCL_CTAS = 24
NIC_GB_S = 21.25
NIC_LATENCY_US = 9.5


def a100_profile(data: Path, measurements: Path) -> Profile:
    """Return the profile, fitted from the folder ``data`` and our records of an H200."""
    return Profile(
        name="a100-sxm",
        created=CREATED,
        machine=_machine(),
        gemm=gemm_section(
            _gemms(data),
            A100_SMS,
            clock="boost at first, not recorded: short bursts under a CUDA graph",
            note="dgrad is assumed to cost what the forward GEMM of its shape does, wgrad that and "
            "the bytes of its fp32 sums.",
        ),
        attention=_attention(data),
        pointwise=_pointwise(measurements),
        collectives=_collectives(data),
        contention=_contention(data),
        launch=eager_launch(),
        power=a100_power(data, gemm_csv(_gemms(data).read_bytes()).rows),
    )


def _gemms(data: Path) -> Path:
    return data / "measured" / "a100_gemm_bf16.csv.gz"


def _machine() -> Machine:
    return Machine(
        gpu="A100 SXM 80 GB",
        gpus_per_node=8,
        gpu_memory_gib=80.0,
        sm_count=A100_SMS,
        peak_tflops={"bf16": PEAK_TFLOPS, "fp16": PEAK_TFLOPS, "fp32": 19.5, "fp64": 19.5},
        memory_bandwidth_gb_s=MEMORY_GB_S,
        backend="nccl",
        l2_mb=40.0,
        details={
            "node": "8 GPUs on NVSwitch",
            "network": "8 x 200 Gb/s InfiniBand a node, one NIC a GPU (assumed)",
        },
    )


def _attention(data: Path) -> AttentionSection:
    h100 = h100_attention_fit(data)
    flops, memory = PEAK_TFLOPS / H100_PEAK_TFLOPS, MEMORY_GB_S / H100_MEMORY_GB_S
    fit = replace(
        h100,
        kind="assumed",
        sm_count=A100_SMS,
        tflops=rounded(h100.tflops * flops),
        tile_tflops=rounded(h100.tile_tflops * flops),
        row_ns=rounded(h100.row_ns / memory),
        error=ASSUMED_ERROR,
    )
    return AttentionSection(
        fit=fit,
        provenance=Provenance(
            kind="assumed",
            source="The H100 law, rates by peak FLOP/s and row cost by memory bandwidth",
            error=ASSUMED_ERROR,
            note="FlashAttention-2 on A100 reaches about the same share of the peak as "
            "FlashAttention-3 on H100.",
        ),
    )


def _pointwise(measurements: Path) -> PointwiseSection:
    laws = pointwise_laws(h200_ops(measurements), _machine())
    return PointwiseSection(
        fits=tuple(
            replace(fit, kind="assumed", error=max(fit.error, ASSUMED_ERROR)) for fit in laws
        ),
        provenance=Provenance(
            kind="assumed",
            source="The laws of an H200: rates within its L2, beyond it by memory bandwidth",
            error=ASSUMED_ERROR,
        ),
    )


def _collectives(data: Path) -> CollectiveSection:
    rows = collectives_csv((data / "measured" / "a100_nccl_nvlink.csv").read_bytes()).rows
    by_ctas = a100_all_reduce_by_ctas(data)
    fits = tuple(sorted((*fit_collectives(rows), *by_ctas), key=lambda fit: fit.group))
    reduce = [fit.error for fit in fits if fit.op == "all_reduce"]
    return CollectiveSection(
        fits=fits,
        nic_gb_s=NIC_GB_S,
        nic_latency_us=NIC_LATENCY_US,
        provenance=Provenance(
            kind="fitted",
            source=f"One node: {AICONFIGURATOR}; by NCCL CTAs on 4 GPUs at 1410 MHz: {OVERLAP}",
            error=float(f"{sum(reduce) / len(reduce):.2g}"),
            note="error: leave-one-out over the all-reduce laws, knots held. By CTAs, 8 MiB and "
            "more was timed; up to 64 KiB, NCCL's own choice of CTAs stands in. Several nodes are "
            "assumed: a 200 Gb/s NIC a rank at 85 % and 9.5 us for each doubling of nodes.",
        ),
    )


def _contention(data: Path) -> ContentionSection:
    overlapped = a100_overlap(data)
    fit = overlapped.fit
    return ContentionSection(
        fit=contention_law(
            fit, sm_count=A100_SMS, default_ctas=NCCL_CTAS, kind="fitted",
            error=fit.leave_shape_out_error,
        ),
        provenance=Provenance(
            kind="fitted",
            source=f"{overlapped.cells} cells (12 GEMM shapes, 1–32 CTAs, 64 MiB all-reduce) of "
            f"{OVERLAP}",
            error=fit.leave_shape_out_error,
            note="4 GPUs at 1200 MHz, communication stream first and at high priority; error: each "
            f"shape predicted from the others; {fit.constant_us:g} us an iteration belong to the "
            "experiment. NCCL's own choice is taken as 24 CTAs (its time lies between 16 and 32). "
            "Pointwise ops 1.15 times, two collectives sharing links half speed each, not sharing "
            "them 1.1 times: assumed.",
        ),
    )  # fmt: skip
