"""What our own H200 recorded of its ops: rows and laws, from which other GPUs take over some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from domino_tune.measure.op_rows import add_ops
from lab.fits.attention import fit_attention
from lab.fits.common import CREATED, OURS, Sources
from lab.fits.gemm import layout_fit
from lab.fits.pointwise import like
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import DEFAULT, PointwiseRow
from simulator.profile import AttentionSection, Machine, PointwiseSection, Profile
from simulator.provenance import Provenance

MACHINE: Final = Machine(
    gpu="H200 SXM 141 GB",
    gpus_per_node=8,
    gpu_memory_gib=139.8,
    sm_count=132,
    peak_tflops={"bf16": 989.4, "fp16": 989.4, "fp32": 66.9, "fp64": 66.9},
    memory_bandwidth_gb_s=4800.0,
    backend="nccl",
    l2_mb=50.0,
    details={
        "measured": "one GPU; driver 580.159.04, CUDA 13.0, torch 2.11.0; 700 W",
        "clocks": "1980 MHz at rest; 1470 MHz, 690 W under lasting load (power cap)",
    },
)
BOOST: Final = (
    "boost, up to 1980 MHz, not recorded: bursts on a GPU that spins, cool, while the host issues "
    "the ops ahead. A long run's 1470 MHz makes compute-bound ops up to 1.35 times slower."
)
LAW_HEAD_DIM: Final = 128
REWRITTEN: Final[dict[str, tuple[str, float]]] = {
    "rmsnorm": ("layernorm", 1.0),
    "rmsnorm_bwd": ("layernorm_bwd", 1.0),
    "rope": ("gelu", 1.0),
    "rope_bwd": ("gelu", 1.0),
    "swiglu": ("gelu", 1.0),
    "swiglu_bwd": ("gelu_bwd", 1.0),
    "bias_dropout_add": ("bias_dropout_add", 0.7),
    "bias_dropout_add_bwd": ("bias_dropout_add_bwd", 0.5),
}
"""Ops that became one kernel after the measurement -> the op whose measured time for as many bytes
they are assumed to take, and the share of it. Dropout's shares follow from its remaining passes
over memory: drawing the mask (about half of the time) stays, of the others 7 of 19 bytes per
element stay, and backward 5 of 9."""
ALIKE: Final[dict[str, tuple[str, float]]] = {
    "relu": ("gelu", 1.0),
    "relu_bwd": ("gelu_bwd", 1.0),
    "copy": ("gelu", 1.0),
    DEFAULT: ("gelu", 1.0),
    "fused_cross_entropy": ("gelu", 1 / 0.42),
    "unfused_cross_entropy": ("gelu", 1 / 0.49),
}
"""Ops that were never measured -> the op that streams as they do, and how much longer they take.
Both cross-entropies by their rates on a B200 beside that of streams, SimuMax's ce_fusion and ce
(data/measured/b200/memory_bound.csv)."""
BEYOND_L2_BYTES: Final = 1.5e9
"""An op that moves more finds at most 3 % of it in the L2."""


@cache
def h200_ops(sources: Sources) -> Profile:
    """Return the profile with the sections of compute ops only: of each op the row with the most
    samples, with the provenance of the rows and of the laws."""
    best: dict[str, Mapping[str, Any]] = {}
    for row in (row for message in sources.ours("ops") for row in message["ops"]):
        known = best.setdefault(str(row["signature"]), row)
        if known["samples"] <= row["samples"]:
            best[str(row["signature"])] = row
    profile = add_ops(Profile(name="h200-sxm", created=CREATED, machine=MACHINE), best.values())
    measured = Provenance(
        kind="measured",
        source=OURS,
        clock=BOOST,
        note="Layers of the presets at TP 8, 4, 2 and in part 1, in place, one rank, nothing "
        "beside it.",
    )
    gemm, attention, pointwise = (
        replace(profile.section(name), provenance=measured)
        for name in ("gemm", "attention", "pointwise")
    )
    rows = _possible(gemm.rows)
    fits = tuple(layout_fit(rows, layout, MACHINE.sm_count) for layout in LAYOUTS)
    return replace(
        profile, gemm=replace(gemm, rows=rows, fits=fits), attention=attention,
        pointwise=_rewritten(replace(pointwise, rows=_moved_only(pointwise.rows))),
    )  # fmt: skip


LAYOUTS: Final = ("dgrad", "forward", "wgrad")


def attention_section(ops: Profile) -> AttentionSection:
    """Return the measured section with the law of its rows of one head size."""
    section: AttentionSection = ops.section("attention")
    rows = [row for row in section.rows if row.head_dim == LAW_HEAD_DIM]
    forward = [row for row in rows if row.direction == "forward"]
    return replace(section, fit=fit_attention(forward, rows, sm_count=MACHINE.sm_count))


def attained_gb_s(ops: Profile) -> float:
    """Return the most that an op moved through memory, of those that move far more than the L2
    holds."""
    rows: Sequence[PointwiseRow] = ops.section("pointwise").rows
    moved = ((row.bytes_read + row.bytes_written, row) for row in rows)
    return max(size / row.median_us / 1000 for size, row in moved if size > BEYOND_L2_BYTES)


def _possible(rows: Sequence[GemmRow]) -> tuple[GemmRow, ...]:
    """Return the rows that are no faster than the peak.

    One is: a dgrad of 4,096 × 640 × 5,120 at 1,085 TFLOP/s, more than 132 SMs have at 1,980 MHz. It
    takes as long as half its tokens do.
    """
    peak = MACHINE.peak_tflops["bf16"]
    return tuple(row for row in rows if row.signature.flops / row.median_us / 1e6 <= peak)


def _moved_only(rows: Sequence[PointwiseRow]) -> tuple[PointwiseRow, ...]:
    """Return the rows without bytes that were counted but not moved: behind the embedding of a
    model without positions and dropout nothing runs."""
    moved = [
        replace(row, bytes_read=0, bytes_written=0)
        if row.name == "embedding_post" and row.median_us < 1
        else row
        for row in rows
    ]
    found = {row.key: row for row in moved}
    return tuple(found[key] for key in sorted(found))


def _rewritten(section: PointwiseSection) -> PointwiseSection:
    """Replace the rows of ops whose kernels have changed by assumed laws."""
    note = (
        f"{section.provenance.note} Assumed, since they became one kernel each after they were "
        f"measured: {', '.join(sorted(REWRITTEN))}. Assumed, never measured: "
        f"{', '.join(sorted(ALIKE))}."
    )
    alike = {**ALIKE, **REWRITTEN}.items()
    return replace(
        section,
        rows=tuple(row for row in section.rows if row.name not in REWRITTEN),
        fits=tuple(like(section.rows, name, other, factor) for name, (other, factor) in alike),
        provenance=replace(section.provenance, note=note),
    )
