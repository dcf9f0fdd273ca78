"""The bundled H200 profile, from our own measurements of one GPU (``measurements/``).

A node's collectives come from the bundled H100 profile: both GPUs have the same NVLink.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from domino_tune.measure.op_rows import add_ops
from lab.fits.attention import fit_attention
from lab.fits.common import records, rounded
from lab.fits.gemm import fit_gemm
from lab.fits.h200_contention import (
    SM_COUNT,
    SOURCE,
    contention_records,
    h200_contention,
)
from lab.fits.parts import LAUNCH_ERROR
from lab.fits.pointwise import fit_pointwise
from lab.fits.power import hopper_power
from simulator.lookup.gemm import GemmFit, GemmRow
from simulator.lookup.pointwise import DEFAULT, PointwiseFit, PointwiseRow
from simulator.profile import (
    AttentionSection,
    CollectiveSection,
    LaunchSection,
    Machine,
    PointwiseSection,
    Profile,
)
from simulator.provenance import Provenance

CREATED: Final = "2026-11-20"
BOOST: Final = (
    "boost, up to 1980 MHz, not recorded: bursts on a GPU that spins, cool, while the host issues "
    "the ops ahead. A long run's 1470 MHz makes compute-bound ops up to 1.35 times slower."
)
LAW_HEAD_DIM: Final = 128
ASSUMED_COLLECTIVE_US: Final = 15.0
ASSUMED_COLLECTIVES: Final = 0.1
"""Expected error of an H100's collective on an H200."""
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
ASSUMED_ERROR: Final = 0.3
BEYOND_L2_BYTES: Final = 1.5e9
"""An op that moves more finds at most 3 % of it in the L2."""
ONE_KERNEL: Final = ("attn.norm", "mlp.norm", "mlp.act", "mlp.act_bwd")
"""Pointwise ops of a GPT that were one kernel when launches were timed."""


def h200_profile(data: Path, measurements: Path, h100: CollectiveSection) -> Profile:
    """Build it from ``data`` and our records in ``measurements``; ``h100``: what one GPU cannot
    show."""
    ops = h200_ops(measurements)
    return replace(
        ops,
        attention=_with_law(ops.section("attention")),
        collectives=replace(
            h100,
            provenance=replace(
                h100.provenance,
                kind="assumed",
                error=ASSUMED_COLLECTIVES,
                note="Taken over from h100-dgx: H200 nodes have the same NVLink, NVSwitch and "
                f"network. There: {h100.provenance.note}",
            ),
        ),
        contention=h200_contention(contention_records(measurements), attained_gb_s(ops)),
        launch=_launch(records(measurements / "launch.jsonl.gz")),
        power=hopper_power(data, measured=True),
    )


def _with_law(section: AttentionSection) -> AttentionSection:
    """Return ``section`` with the law of its rows of one head size."""
    rows = [row for row in section.rows if row.head_dim == LAW_HEAD_DIM]
    forward = [row for row in rows if row.direction == "forward"]
    return replace(section, fit=fit_attention(forward, rows, sm_count=SM_COUNT))


@cache
def h200_ops(measurements: Path) -> Profile:
    """Return the profile with the sections of compute ops only."""
    empty = Profile(name="h200-sxm", created=CREATED, machine=_machine())
    return _with_ops(empty, records(measurements / "ops.jsonl.gz"))


def attained_gb_s(ops: Profile) -> float:
    """Return the most that an op moved through memory, of those that move far more than the L2
    holds."""
    rows: Sequence[PointwiseRow] = ops.section("pointwise").rows
    moved = ((row.bytes_read + row.bytes_written, row) for row in rows)
    return max(size / row.median_us / 1000 for size, row in moved if size > BEYOND_L2_BYTES)


def _machine() -> Machine:
    return Machine(
        gpu="H200 SXM 141 GB",
        gpus_per_node=8,
        gpu_memory_gib=139.8,
        sm_count=SM_COUNT,
        peak_tflops={"bf16": 989.4, "fp16": 989.4, "fp32": 66.9, "fp64": 66.9},
        memory_bandwidth_gb_s=4800.0,
        backend="nccl",
        l2_mb=50.0,
        details={
            "measured": "one GPU; driver 580.159.04, CUDA 13.0, torch 2.11.0; 700 W",
            "clocks": "1980 MHz at rest; 1470 MHz, 690 W under lasting load (power cap)",
        },
    )


def _with_ops(profile: Profile, messages: Sequence[Mapping[str, Any]]) -> Profile:
    """Add the rows with the most samples, with the provenance of the rows and of the laws."""
    best: dict[str, Mapping[str, Any]] = {}
    for row in (row for message in messages for row in message["ops"]):
        known = best.setdefault(str(row["signature"]), row)
        if known["samples"] <= row["samples"]:
            best[str(row["signature"])] = row
    profile = add_ops(profile, best.values())
    measured = Provenance(
        kind="measured",
        source=SOURCE,
        clock=BOOST,
        note="Layers of the presets at TP 8, 4, 2 and in part 1, in place, one rank, nothing "
        "beside it.",
    )
    sections = {
        name: replace(getattr(profile, name), provenance=measured)
        for name in ("gemm", "attention", "pointwise")
    }
    rows = _possible(sections["gemm"].rows, profile.machine)
    sections["gemm"] = replace(sections["gemm"], rows=rows)
    fits = tuple(gemm_fit(rows, layout) for layout in ("dgrad", "forward", "wgrad"))
    sections["gemm"] = replace(sections["gemm"], fits=fits)
    sections["pointwise"] = replace(
        sections["pointwise"], rows=_moved_only(sections["pointwise"].rows)
    )
    sections["pointwise"] = _rewritten(sections["pointwise"])
    return replace(profile, **sections)


def _possible(rows: Sequence[GemmRow], machine: Machine) -> tuple[GemmRow, ...]:
    """Return the rows that are no faster than the peak.

    One is: a dgrad of 4,096 × 640 × 5,120 at 1,085 TFLOP/s, more than 132 SMs have at 1,980 MHz. It
    takes as long as half its tokens do.
    """
    peak = machine.peak_tflops["bf16"]
    return tuple(row for row in rows if row.signature.flops / row.median_us / 1e6 <= peak)


def _moved_only(rows: Sequence[PointwiseRow]) -> tuple[PointwiseRow, ...]:
    """Return the rows without bytes that were counted but not moved.

    Behind the embedding of a model without positions and dropout nothing runs.
    """
    found = {
        moved.key: moved
        for row in rows
        for moved in [
            replace(row, bytes_read=0, bytes_written=0)
            if row.name == "embedding_post" and row.median_us < 1
            else row
        ]
    }
    return tuple(found[key] for key in sorted(found))


def _rewritten(section: PointwiseSection) -> PointwiseSection:
    """Replace the rows of ops whose kernels have changed by assumed laws."""
    note = (
        f"{section.provenance.note} Assumed, since they became one kernel each after they were "
        f"measured: {', '.join(sorted(REWRITTEN))}. Assumed, never measured: "
        f"{', '.join(sorted(ALIKE))}."
    )
    return replace(
        section,
        rows=tuple(row for row in section.rows if row.name not in REWRITTEN),
        fits=tuple(
            _assumed_law(section.rows, name, like, factor)
            for name, (like, factor) in {**ALIKE, **REWRITTEN}.items()
        ),
        provenance=replace(section.provenance, note=note),
    )


def _assumed_law(
    rows: Sequence[PointwiseRow], name: str, like: str, factor: float
) -> PointwiseFit:  # fmt: skip
    """Return the law of ``like``'s whole rows, ``factor`` times as long."""
    scaled = [
        replace(row, median_us=factor * row.median_us)
        for row in rows
        if row.name == like and row.pieces == 1
    ]
    law = fit_pointwise(scaled, (name,))
    return replace(law, kind="assumed", error=max(ASSUMED_ERROR, law.error))


def gemm_fit(rows: Sequence[GemmRow], layout: str) -> GemmFit:
    """Return a layout's tiled law: the trend between rows. Most weight gradients accumulate."""
    shapes = [
        (row.m, row.n, row.k, row.median_us)
        for row in rows
        if row.layout == layout and row.accumulate == (layout == "wgrad")
    ]
    return fit_gemm(shapes, SM_COUNT, layout=layout, accumulate=layout == "wgrad")


def _launch(rows: Sequence[Mapping[str, Any]]) -> LaunchSection:
    costs: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for kind, cost_us in row.get("cost_us", {}).items():
            if kind != "pointwise":
                costs[kind].append(cost_us)
        if row.get("model", "").startswith("gpt3"):
            costs["pointwise"] += [row["cost_us_by_role"][role] for role in ONE_KERNEL]
    return LaunchSection(
        mode="async",
        cost_us={
            **{kind: rounded(statistics.median(found)) for kind, found in costs.items()},
            "collective": ASSUMED_COLLECTIVE_US,
        },
        queue_depth=1024,
        assumed=("collective",),
        provenance=Provenance(
            kind="measured",
            source=SOURCE,
            error=LAUNCH_ERROR,
            note="Host time of the runtime's own ops, median over nine plans of three models on a "
            "virtual machine; they differ by a factor of two. Of pointwise ops only those counted "
            "that were one kernel then, as most are now. A collective's is assumed.",
        ),
    )
