"""What our own H200 recorded of its ops: rows and laws, from which other GPUs take over some; and
launch costs: of its host, measured, or of eager PyTorch, assumed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np

from domino_tune.measure.profiling import add_ops
from lab.fits.attention import fit_attention, our_rows, small_heads
from lab.fits.common import TRANSFER_ERROR, Floats, Gpu, Sources, mape, nonnegative, rounded
from lab.fits.common import Description as Words
from lab.fits.gemm import layout_fit
from simulator.errors import InputError
from simulator.lookup.attention import AttentionFit
from simulator.lookup.pointwise import PointwiseFit as Law
from simulator.lookup.pointwise import PointwiseRow
from simulator.profile import AttentionSection, LaunchSection, Machine, PointwiseSection, Profile

GPU: Final = Gpu("h200-sxm")
ANY: Final = Words("any")
LAYOUTS: Final = ("dgrad", "forward", "wgrad")
OTHER_HEADS: Final = ((64, 64), (192, 128))
"""Elements of keys and of values that stage ``attention`` timed."""
BEYOND_L2_BYTES: Final = 1.5e9  # An op that moves more finds at most 3 % of it in the L2


@cache
def h200_ops(sources: Sources) -> Profile:
    """Return the profile of compute ops alone: of each op the row with the most samples."""
    rewritten = GPU.told["pointwise"]["rewritten"]
    ops = (row for message in sources.ours("ops") for row in message.get("ops", ()))
    profile = _with_ops(GPU.profile(), (x for x in ops if x["signature"][1] not in rewritten))
    moved = (*profile.section("pointwise").rows, *rewritten_rows(GPU, sources))
    sections = ((profile.section(one), GPU.words(one)) for one in ("gemm", "attention"))
    gemm, attention = (replace(section, provenance=words) for section, words in sections)
    # One row is faster than the peak: a dgrad of 4,096 × 640 × 5,120 at 1,085 TFLOP/s, more than
    # 132 SMs have at 1,980 MHz. It takes as long as half its tokens do.
    peak = GPU.machine.peak_tflops["bf16"]
    rows = tuple(x for x in gemm.rows if x.signature.flops / x.median_us / 1e6 <= peak)
    fits = tuple(layout_fit(rows, layout, GPU.machine.sm_count) for layout in LAYOUTS)
    return replace(
        profile, gemm=replace(gemm, rows=rows, fits=fits), attention=attention,
        pointwise=_pointwise(moved),
    )  # fmt: skip


def rewritten_rows(gpu: Gpu, sources: Sources) -> tuple[PointwiseRow, ...]:
    """Return what later records tell of ops that became one kernel each after the first one."""
    names = [["pointwise", name] for name in GPU.told["pointwise"]["rewritten"]]
    stages = (sources.ours(stage, gpu.name) for stage in gpu.told["pointwise"]["rewritten_in"])
    ops = (row for messages in stages for one in messages for row in one.get("ops", ()))
    made = _with_ops(gpu.profile(), (row for row in ops if row["signature"][:2] in names))
    return tuple(made.section("pointwise").rows)


def _with_ops(profile: Profile, rows: Iterable[Mapping[str, Any]]) -> Profile:
    best: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if best.setdefault(str(row["signature"]), row)["samples"] <= row["samples"]:
            best[str(row["signature"])] = row
    return add_ops(profile, best.values())


def attention_section(ops: Profile, sources: Sources) -> AttentionSection:
    """Return the section with rows of other heads, and the laws of its rows and heads of 64."""
    section, fit = ops.section("attention"), attention_law(ops)
    more = (row for dims in OTHER_HEADS for row in our_rows(sources, dims))
    rows = tuple(sorted((*section.rows, *more), key=lambda row: row.key))
    small = small_heads(fit, sources)
    made: AttentionSection = replace(section, rows=rows, fit=fit, others=(small,))
    return made


def attention_law(ops: Profile) -> AttentionFit:
    """Return the law of the measured rows of one head size."""
    rows = [row for row in ops.section("attention").rows if row.head_dim == 128]
    forward = [row for row in rows if row.direction == "forward"]
    return fit_attention(forward, rows, sm_count=GPU.machine.sm_count)


def attained_gb_s(ops: Profile) -> float:
    """Return the most that an op moved through memory, of those far larger than the L2."""
    rows: Sequence[PointwiseRow] = ops.section("pointwise").rows
    return max(_moved(x) / x.median_us / 1000 for x in rows if _moved(x) > BEYOND_L2_BYTES)


def _pointwise(rows: Iterable[PointwiseRow]) -> PointwiseSection:
    """Return the rows, without bytes that were counted but not moved (behind the embedding of a
    model without positions and dropout nothing runs), and assumed laws of ops that were never
    measured."""
    none: dict[str, Any] = {"bytes_read": 0, "bytes_written": 0}
    moved = (
        replace(row, **none) if row.name == "embedding_post" and row.median_us < 1 else row
        for row in rows
    )
    found = {row.key: row for row in moved}
    made, told = tuple(found[key] for key in sorted(found)), GPU.told["pointwise"]
    fits = (like(made, name, other, factor) for name, (other, factor) in told["alike"].items())
    alike = ", ".join(sorted(told["alike"]))
    words = GPU.words("pointwise", rewritten=", ".join(told["rewritten"]), alike=alike)
    return PointwiseSection(rows=made, fits=tuple(fits), provenance=words)


def launch_section(gpu: Gpu | None = None, rows: Sequence[Mapping[str, Any]] = ()) -> LaunchSection:
    """Return the medians of the records of plans; the host costs of eager PyTorch without any."""
    eager = ANY.told["launch"]
    usual = LaunchSection(
        mode="async", cost_us=eager["cost_us"], queue_depth=eager["queue_depth"],
        provenance=ANY.words("launch"),
    )  # fmt: skip
    if gpu is None:
        return usual
    costs: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for kind, cost_us in row.get("cost_us", {}).items():
            if kind != "pointwise":
                costs[kind].append(cost_us)
        if row.get("model", "").startswith("gpt3"):
            roles = gpu.told["launch"]["one_kernel"]
            costs["pointwise"] += [row["cost_us_by_role"][role] for role in roles]
    medians = {kind: rounded(statistics.median(found)) for kind, found in costs.items()}
    own = {**medians, "collective": eager["cost_us"]["collective"]}
    return replace(usual, cost_us=own, assumed=("collective",), provenance=gpu.words("launch"))


MB: Final = 1_000_000
LEAST_ROWS: Final = 8  # Twice as many as a law has numbers
KNEES_MB: Final = (10, 15, 20, 25, 30, 35, 40, 50, 60, 80)
_RESOLUTION_US: Final = 1.0  # tables have whole microseconds: reduces the weight of short times
_LIKE_ERROR: Final = 0.3  # Expected error of an op that is taken to be like another
Rows = Sequence[PointwiseRow]


def transferred(
    other: Profile, machine: Machine, *, own: Rows = (), least_error: float = 0
) -> tuple[Law, ...]:
    """Return a law by name: those that the ``other`` GPU timed, fitted; those that it assumes,
    assumed. Rates within the L2 stay, beyond it they follow the memory bandwidth. Ops that have
    ``own`` rows get the law of these, if it is surer. With a ``least_error`` all are assumed."""
    section = other.section("pointwise")
    faster = machine.memory_bandwidth_gb_s / other.machine.memory_bandwidth_gb_s
    rows = [row for row in section.rows if row.bytes_written]
    timed = []
    for name in sorted({row.name for row in rows if row.pieces == 1}):
        mine, there = (_whole(known, name) for known in (own, rows))
        law = _at_bandwidth(fit_pointwise(there, (name,)), faster)
        timed.append(_surer(law, mine, there, faster) if mine else law)
    laws = (*timed, *(_at_bandwidth(fit, faster) for fit in section.fits))
    found = [
        replace(fit, error=max(least_error, rounded(fit.error + TRANSFER_ERROR, 2)))
        for fit in sorted(laws, key=lambda fit: fit.names)
    ]
    return tuple(replace(law, kind="assumed") if least_error else law for law in found)


def _whole(rows: Rows, name: str) -> list[PointwiseRow]:
    return [row for row in rows if (row.name, row.pieces) == (name, 1)]


def _surer(law: Law, own: Rows, other: Rows, faster: float) -> Law:
    """Return the surer of another GPU's ``law`` and that of ``own`` rows, continued by its rows."""
    times = np.array([row.median_us for row in own])
    found = np.array([law.fixed_us + law.memory_us(_moved(row)) for row in own])
    checked = replace(law, error=max(law.error, rounded(mape(found, times), 2)))
    most = max(map(_moved, own))
    larger = (row for row in other if _moved(row) > most)
    continued = [*own, *(replace(row, median_us=row.median_us / faster) for row in larger)]
    return min(checked, fit_pointwise(continued, law.names), key=lambda fit: fit.error)


def _moved(row: PointwiseRow) -> int:
    return row.bytes_read + row.bytes_written


def _at_bandwidth(fit: Law, faster: float) -> Law:
    return replace(fit, large_gb_s=rounded(fit.large_gb_s * faster))


def as_assumed(fit: Law, faster: float) -> Law:
    """Return the law of a GPU for one whose memory is ``faster`` times as fast."""
    return replace(_at_bandwidth(fit, faster), kind="assumed")


def like(rows: Rows, name: str, other: str, factor: float) -> Law:
    """Return the law of the ``other`` op's whole rows, ``factor`` times as long, for ``name``."""
    whole = _whole(rows, other)
    law = fit_pointwise([replace(x, median_us=factor * x.median_us) for x in whole], (name,))
    return replace(law, kind="assumed", error=max(_LIKE_ERROR, law.error))


def fit_pointwise(rows: Rows, names: tuple[str, ...]) -> Law:
    """Fit the law for ``names`` to rows of one op; ``error`` is of withheld sizes, five folds."""
    if len(rows) < LEAST_ROWS:
        raise InputError(f"A law for {names} needs at least {LEAST_ROWS} timings, got {len(rows)}.")
    rows = sorted(rows, key=lambda row: (_moved(row), row.key))
    sizes = np.array([_moved(row) for row in rows], dtype=np.float64)
    return law_of_sizes(names, sizes, np.array([row.median_us for row in rows]))


def law_of_sizes(names: tuple[str, ...], sizes: Floats, times: Floats) -> Law:
    """Return the law of ``times``, us, of ascending ``sizes``, bytes."""
    sizes = sizes / MB
    knee, (fixed, small, large) = _solve(sizes, times)
    return Law(
        names=names, fixed_us=rounded(fixed), small_gb_s=rounded(1e3 / max(small, 1e-6)),
        knee_bytes=knee * MB, large_gb_s=rounded(1e3 / max(large, 1e-6)),
        max_bytes=int(sizes[-1] * MB), error=rounded(_withheld_error(sizes, times), 2),
    )  # fmt: skip


def _design(sizes: Floats, knee: float) -> Floats:
    small = np.minimum(sizes, knee)
    return np.stack([np.ones_like(sizes), small, sizes - small], axis=1)


def _solve(sizes: Floats, times: Floats) -> tuple[int, Floats]:
    """Return the best knee and (fixed us, us per MB below it, us per MB above it)."""
    weights = 1 / (times + _RESOLUTION_US)
    tried = {knee: nonnegative(_design(sizes, knee), times, weights) for knee in KNEES_MB}
    best = min(tried, key=lambda knee: tried[knee][1])
    return best, tried[best][0]


def _withheld_error(sizes: Floats, times: Floats) -> float:
    """Return the mean relative error of every fifth size, for times well above the resolution."""
    fold, predicted = np.arange(len(sizes)) % 5, np.empty_like(times)
    for out in range(5):
        knee, coefficients = _solve(sizes[fold != out], times[fold != out])
        predicted[fold == out] = _design(sizes[fold == out], knee) @ coefficients
    clear = times >= 5 * _RESOLUTION_US
    return mape(predicted[clear], times[clear])
