"""The two Hopper profiles beside each other, and at what clock our rows of the H200 were taken."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from lab.verdict import verdict
from simulator.estimate import Estimate
from simulator.lookup.attention import AttentionRow
from simulator.lookup.gemm import GemmRow
from simulator.profile import Profile

MEASURED: Final = "h200-sxm"
PUBLISHED: Final = "h100-dgx"
WITHIN: Final = 0.05
NEAR: Final = (1 - WITHIN, 1 + WITHIN)
FLOPS_PER_CLOCK: Final = 4096
"""Dense bf16 FLOPs of an SM in a clock: 989.4 TFLOP/s of 132 SMs at 1,830 MHz (NVIDIA's paper)."""
LASTING: Final = (666.0, 1470.0)
"""TFLOP/s and MHz of a large GEMM after a long run (measurements/h200-sxm/launch.jsonl.gz)."""
HEAVY_TFLOP: Final = 0.3


class Family(NamedTuple):
    """Compute-bound rows of one kind, and the range that the median ratio must lie in.

    ``because`` says why that range is not ``NEAR``.
    """

    name: str
    chosen: Callable[[GemmRow | AttentionRow], bool]
    expected: tuple[float, float] = NEAR
    because: str = ""


def _gemms(layout: str, low: float, high: float) -> Callable[[GemmRow | AttentionRow], bool]:
    def chosen(row: GemmRow | AttentionRow) -> bool:
        return (
            isinstance(row, GemmRow)
            and row.layout == layout
            and low <= row.signature.flops * 1e-12 < high
        )

    return chosen


def _cores(direction: str) -> Callable[[GemmRow | AttentionRow], bool]:
    def chosen(row: GemmRow | AttentionRow) -> bool:
        large = row.signature.flops * 1e-12 >= HEAVY_TFLOP
        return isinstance(row, AttentionRow) and row.direction == direction and large

    return chosen


# Published GEMMs follow each other under a CUDA graph, ours ran on a GPU that had cooled. The law's
# throttle, 1 + 0.23 g / (g + 2,325) at g GFLOP, is 1.12 at 2.5 TFLOP, about the largest shape here.
POWER: Final = ((1.0, 1.12), "the power cap slows long published GEMMs")
# Forward GEMMs of that size differ by up to 1.05. At 3,350 instead of 4,800 GB/s the 10 bytes an
# element of C cost 2 % more at the median, and 7 % where C is large.
MEMORY: Final = ((1.0, 1.12), "the forward law's difference; fp32 sums in slower memory")
# The throttle, and the fp32 sums' 1 to 3 % of longer GEMMs.
POWER_AND_MEMORY: Final = (
    (1.0, 1.15), "the power cap slows long published GEMMs; fp32 sums in slower memory"
)  # fmt: skip
# Assumed, as no table has both kernels: page look-ups cost something, at most a third.
SERVING: Final = ((1.1, 1.3), "published: serving kernels on paged KV; ours: the training kernel")

FAMILIES: Final = (
    Family("forward GEMM, 0.1 to 1 TFLOP", _gemms("forward", 0.1, 1.0)),
    Family("forward GEMM, above 1 TFLOP", _gemms("forward", 1.0, 1e9), *POWER),
    Family("dgrad, 0.1 to 1 TFLOP", _gemms("dgrad", 0.1, 1.0)),
    Family("dgrad, above 1 TFLOP", _gemms("dgrad", 1.0, 1e9), *POWER),
    Family("wgrad, 0.1 to 1 TFLOP", _gemms("wgrad", 0.1, 1.0), *MEMORY),
    Family("wgrad, above 1 TFLOP", _gemms("wgrad", 1.0, 1e9), *POWER_AND_MEMORY),
    Family("attention forward, above 0.3 TFLOP", _cores("forward"), *SERVING),
    Family("attention backward, above 0.3 TFLOP", _cores("backward")),
)


def agreement() -> list[Table]:
    """Return the profiles' times of compute-bound shapes, and the clocks that rates imply."""
    measured, published = load_profile(MEASURED), load_profile(PUBLISHED)
    return [_agreement(measured, published), _clocks(measured)]


def _agreement(measured: Profile, published: Profile) -> Table:
    rows = [*measured.section("gemm").rows, *measured.section("attention").rows]
    lines = []
    for family in FAMILIES:
        ratios = [
            _estimate(published, row).duration_us / row.median_us
            for row in rows
            if family.chosen(row)
        ]
        ventiles = statistics.quantiles(ratios, n=20)
        median = ventiles[9]
        low, high = family.expected
        lines.append((
            family.name, str(len(ratios)), *(f"{ventiles[i]:.2f}" for i in (0, 9, 18)),
            "yes" if abs(median - 1) <= WITHIN else "no", family.because, f"{low:.2f}–{high:.2f}",
            verdict(low <= median <= high),
        ))  # fmt: skip
    return Table(
        title=f"{PUBLISHED} looked up / {MEASURED} measured, compute-bound shapes",
        columns=(
            "shapes", ">rows", ">5 %", ">median", ">95 %", f"within {100 * WITHIN:.0f} %",
            "what differs", ">median may be", "verdict",
        ),
        rows=lines,
    )  # fmt: skip


def _estimate(profile: Profile, row: GemmRow | AttentionRow) -> Estimate:
    if isinstance(row, AttentionRow):
        return profile.attention_table().estimate(row.signature)
    return profile.gemm_table().estimate(row.signature)


def _clocks(measured: Profile) -> Table:
    rows: Sequence[GemmRow] = measured.section("gemm").rows
    per_mhz = measured.machine.sm_count * FLOPS_PER_CLOCK * 1e-6
    lines = []
    for layout in ("forward", "dgrad", "wgrad"):
        for name, heavy in ((f"above {HEAVY_TFLOP} TFLOP", True), ("below", False)):
            rates = [
                row.signature.flops / row.median_us / 1e6
                for row in rows
                if row.layout == layout and (row.signature.flops * 1e-12 > HEAVY_TFLOP) == heavy
            ]
            above = sum(rate > LASTING[0] for rate in rates) / len(rates)
            lines.append((
                f"{layout}, {name}", str(len(rates)), f"{statistics.median(rates):.0f}",
                f"{max(rates):.0f}", f"{max(rates) / per_mhz:,.0f}", f"{above:.0%}",
            ))  # fmt: skip
    rate, mhz = LASTING
    return Table(
        title=f"At what clock the GEMM rows of {MEASURED} were taken: boost, as rates tell",
        columns=(
            "rows", ">rows", ">TFLOP/s, median", ">most", ">MHz of the most, at least",
            f">faster than {rate:g} TFLOP/s",
        ),
        rows=lines,
        notes=[
            f"A large GEMM reached {rate:g} TFLOP/s at {mhz:,.0f} MHz after a long run, 790 in the "
            f"20 ms after rest; {rate:g} × 1,980 / {mhz:,.0f} is 897. The clock of a row was not "
            f"recorded. At least: rate / (132 SMs × {FLOPS_PER_CLOCK:,} FLOPs a clock).",
        ],
    )  # fmt: skip
