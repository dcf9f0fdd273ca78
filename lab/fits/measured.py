"""What our own H200 recorded of its ops: rows and laws, from which other GPUs take over some; and
launch costs: of its host, measured, or of eager PyTorch, assumed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from domino_tune.measure.op_rows import add_ops
from lab.fits.attention import fit_attention, our_rows, small_heads
from lab.fits.common import Description, Gpu, Sources, rounded
from lab.fits.gemm import layout_fit
from lab.fits.pointwise import like
from simulator.lookup.attention import AttentionFit
from simulator.lookup.gemm import GemmRow
from simulator.lookup.pointwise import PointwiseRow
from simulator.profile import AttentionSection, LaunchSection, PointwiseSection, Profile

GPU: Final = Gpu("h200-sxm")
ANY: Final = Description("any")
LAW_HEAD_DIM: Final = 128
OTHER_HEADS: Final = ((64, 64), (192, 128))
"""Elements of keys and of values that stage ``attention`` timed."""
BEYOND_L2_BYTES: Final = 1.5e9
"""An op that moves more finds at most 3 % of it in the L2."""


@cache
def h200_ops(sources: Sources) -> Profile:
    """Return the profile with the sections of compute ops only: of each op the row with the most
    samples, with the provenance of the rows and of the laws."""
    rewritten = GPU.told["pointwise"]["rewritten"]
    first = [row for row in _played(sources, "ops") if row["signature"][1] not in rewritten]
    profile = add_ops(GPU.profile(), _of_most_samples(first))
    moved = _moved_only((*profile.section("pointwise").rows, *rewritten_rows(GPU, sources)))
    gemm, attention = (
        replace(profile.section(name), provenance=GPU.words(name)) for name in ("gemm", "attention")
    )
    rows = _possible(gemm.rows)
    fits = tuple(layout_fit(rows, layout, GPU.machine.sm_count) for layout in LAYOUTS)
    return replace(
        profile, gemm=replace(gemm, rows=rows, fits=fits), attention=attention,
        pointwise=_pointwise(moved),
    )  # fmt: skip


def rewritten_rows(gpu: Gpu, sources: Sources) -> tuple[PointwiseRow, ...]:
    """Return what later records tell of ops that became one kernel each after the first one."""
    names = GPU.told["pointwise"]["rewritten"]
    rows = [
        row
        for stage in gpu.told["pointwise"]["rewritten_in"]
        for row in _played(sources, stage, gpu.name)
        if row["signature"][:2] in [["pointwise", name] for name in names]
    ]
    profile = add_ops(gpu.profile(), _of_most_samples(rows))
    found: tuple[PointwiseRow, ...] = profile.section("pointwise").rows
    return found


def _played(sources: Sources, stage: str, gpu: str = GPU.name) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of ops that a stage recorded."""
    for message in sources.ours(stage, gpu):
        yield from message.get("ops", ())


def _of_most_samples(rows: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Return of each op the row with the most samples."""
    best: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        known = best.setdefault(str(row["signature"]), row)
        if known["samples"] <= row["samples"]:
            best[str(row["signature"])] = row
    return best.values()


LAYOUTS: Final = ("dgrad", "forward", "wgrad")


def attention_section(ops: Profile, sources: Sources) -> AttentionSection:
    """Return the measured section with the rows of other heads, the law of its rows of one head
    size, and that of heads of 64."""
    section: AttentionSection = ops.section("attention")
    more = (row for dims in OTHER_HEADS for row in our_rows(sources, dims))
    fit = attention_law(ops)
    return replace(
        section, rows=tuple(sorted((*section.rows, *more), key=lambda row: row.key)), fit=fit,
        others=(small_heads(fit, sources),),
    )  # fmt: skip


def attention_law(ops: Profile) -> AttentionFit:
    """Return the law of the measured rows of one head size."""
    rows = [row for row in ops.section("attention").rows if row.head_dim == LAW_HEAD_DIM]
    forward = [row for row in rows if row.direction == "forward"]
    return fit_attention(forward, rows, sm_count=GPU.machine.sm_count)


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
    peak = GPU.machine.peak_tflops["bf16"]
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


def _pointwise(rows: tuple[PointwiseRow, ...]) -> PointwiseSection:
    """Return the rows, and assumed laws of ops that were never measured."""
    told = GPU.told["pointwise"]
    rewritten, alike = told["rewritten"], told["alike"]
    return PointwiseSection(
        rows=rows,
        fits=tuple(like(rows, name, other, factor) for name, (other, factor) in alike.items()),
        provenance=GPU.words(
            "pointwise", rewritten=", ".join(rewritten), alike=", ".join(sorted(alike))
        ),
    )


def launch_section(gpu: Gpu | None = None, rows: Sequence[Mapping[str, Any]] = ()) -> LaunchSection:
    """Return the medians of the records of plans; the host costs of eager PyTorch without any."""
    eager = ANY.told["launch"]
    if gpu is None:
        return LaunchSection(
            mode="async", cost_us=eager["cost_us"], queue_depth=eager["queue_depth"],
            provenance=ANY.words("launch"),
        )  # fmt: skip
    costs: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for kind, cost_us in row.get("cost_us", {}).items():
            if kind != "pointwise":
                costs[kind].append(cost_us)
        if row.get("model", "").startswith("gpt3"):
            roles = gpu.told["launch"]["one_kernel"]
            costs["pointwise"] += [row["cost_us_by_role"][role] for role in roles]
    medians = {kind: rounded(statistics.median(found)) for kind, found in costs.items()}
    return LaunchSection(
        mode="async", cost_us={**medians, "collective": eager["cost_us"]["collective"]},
        queue_depth=eager["queue_depth"], assumed=("collective",), provenance=gpu.words("launch"),
    )  # fmt: skip
