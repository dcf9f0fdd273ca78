"""Power sections of the bundled profiles: a few recorded points bound the law; the rest is assumed.

One state is known for each GPU: GEMMs without a pause, at the cap. Our H200 was measured in it:
1,470 MHz, 690 W (data/measured/power_points.csv); for the A100 the clock is published; H100 and
B200 are assumed to be like the H200. This state determines the draw of GEMMs and the clock at which
timings were taken: the GEMM that ran at 666 TFLOP/s in it had run at 790 in the first 20 ms after
rest, like our bursts. If a table has many GEMMs, long ones, which heat the GPU while they are
timed, show how far its clock had fallen."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from domino_tune.measure.laws import power_law, power_section
from lab.fits.common import Gpu, Sources, rounded
from simulator.case import Case
from simulator.clock import burden_of
from simulator.lookup import ProvenanceKind
from simulator.lookup.gemm import GemmRow
from simulator.plan import SlicePlan
from simulator.power import PowerSection
from simulator.predict import scheduled

Row = Mapping[str, Any]
Rows = Sequence[Row]
Clocks = list[tuple[float, float]]  # Durations, and the clock of timings from there on
EXPONENTS: Final = (1.0, 3.0)
"""Of a voltage that does not change with the clock, and of one in proportion to it."""
FASTEST: Final = 0.9  # Quantile of GEMMs' FLOP/s that is assumed to be limited only by the clock
LONG_US: Final = 100.0  # Calls that last longer show the power limit, and no launch


@dataclass(frozen=True, kw_only=True)
class Cap:
    """A GPU at its power cap. ``lasting_mhz``: clock of GEMMs without a pause; None: as far below
    boost as on our H200. ``seen``: it is our H200; others are like it in proportion to the cap.
    ``from_us``: durations from which GEMMs run at another clock. ``heats``: the longest ran at the
    clock of a lasting load; otherwise the shortest ran at that of a burst."""

    boost_mhz: int
    cap_w: float
    boost_kind: ProvenanceKind
    from_us: tuple[float, ...] = ()
    lasting_mhz: float | None = None
    seen: bool = False
    heats: bool = False


def capped_section(gpu: Gpu, sources: Sources, rows: Sequence[GemmRow] = ()) -> PowerSection:
    """Return the section of a GPU; ``rows``: the table of its GEMMs."""
    lasting, burst, rest = sources.rows("power_points.csv", gpu="H200 SXM")
    watts, idle_w = (float(row.what.split(" W")[0].split()[-1]) for row in (lasting, rest))
    burst_mhz = int(lasting.clock_mhz) * float(burst.tflops) / float(lasting.tflops)
    cap = Cap(**gpu.told["power"]["cap"])
    lasting_mhz, clocks = cap.lasting_mhz or int(lasting.clock_mhz), [(0.0, burst_mhz)]
    if rows:
        clocks = _clocks(rows, cap, lasting_mhz if cap.heats else burst_mhz)
    if cap.cap_w != float(lasting.cap_w):
        watts, idle_w = cap.cap_w, rounded(idle_w * cap.cap_w / float(lasting.cap_w), 3)
    known: ProvenanceKind = "measured" if cap.seen else "assumed"
    return power_section(
        boost_mhz=cap.boost_mhz, cap_w=cap.cap_w, idle_w=idle_w, lasting=(lasting_mhz, watts),
        clocks=clocks, gemm_kind="fitted" if cap.seen else "assumed",
        kinds={"boost_mhz": cap.boost_kind, "cap_w": "imported", "idle_w": known},
        provenance=gpu.words("power"),
    )  # fmt: skip


def _clocks(rows: Sequence[GemmRow], cap: Cap, clock_mhz: float) -> Clocks:
    """Return the clocks of timings, of which short ones ran at ``clock_mhz``, or on a GPU that
    heats the longest: by the rates of the fastest GEMMs below ``from_us[0]`` that fill the GPU, and
    of those from each other duration up to the next."""
    at = cap.from_us
    spans = [(at[0] / 4, at[0]), *zip(at[1:], [*at[2:], float("inf")], strict=True)]
    rates = []
    for low, high in spans:
        mine = (row for row in rows if low <= row.median_us < high)
        found = [2 * row.m * row.n * row.k / row.median_us for row in mine]
        rates.append(statistics.quantiles(found, n=10)[round(FASTEST * 10) - 1])
    if cap.heats:
        short_mhz = clock_mhz * rates[0] / rates[-1]
        return [(0.0, short_mhz), (at[0], short_mhz), (at[-1], clock_mhz)]
    slower = ((us, clock_mhz * x / rates[0]) for us, x in zip(at[1:], rates[1:], strict=True))
    return [(0.0, clock_mhz), (at[0], clock_mhz), *slower]


def burst_over_lasting(timings: Iterable[tuple[float, float]]) -> float:
    """Return how many times faster long calls are in bursts, by (us in a burst, us repeated)."""
    return statistics.median(lasting / burst for burst, lasting in timings if burst > LONG_US)


def stage_law(clocks: Sequence[Row], sustained: Iterable[Row], known: PowerSection) -> PowerSection:
    """Return ``known`` updated by stages ``clocks`` and ``sustained``; elasticities are medians."""
    found: dict[str, list[float]] = {}
    for row in sustained:
        for family, value in row["elasticity"].items():
            found.setdefault(family, []).append(value)
    medians = {family: statistics.median(values) for family, values in found.items()}
    law = power_law({row["case"].removesuffix(" alone"): row for row in clocks}, medians, known)
    source = "scripts/gpu --stage clocks and sustained: lasting loads on one GPU"
    return replace(law, provenance=replace(law.provenance, source=source))


def stage_exponent(
    clocks: Rows, sustained: Rows, known: PowerSection, case: Case, plan: SlicePlan, row: Row
) -> float:  # fmt: skip
    """Return the exponent with which a lasting step of ``plan``, without communication, draws the
    joules of its row: families alone are at other clocks than the step. Between 1 and 3, see
    ``power_law.EXPONENT``."""
    low, high = EXPONENTS
    while high - low > 0.01:
        middle = (low + high) / 2
        law = stage_law(clocks, sustained, replace(known, exponent=middle))
        too_much = _step_j(law, case, plan, row) > row["step_j"]
        low, high = (low, middle) if too_much else (middle, high)
    return rounded(low, 3)


def with_collectives(law: PowerSection, case: Case, plan: SlicePlan, row: Row) -> PowerSection:
    """Return ``law`` with the draw of collectives by which a step draws its row's joules."""
    none, one = (_step_j(_drawing(law, watts), case, plan, row) for watts in (0.0, 1.0))
    return _drawing(law, rounded(max(0.0, (row["step_j"] - none) / (one - none))), kind="fitted")


def _step_j(law: PowerSection, case: Case, plan: SlicePlan, row: Row) -> float:
    held = replace(case, profile=replace(case.profile, power=law))
    burden = burden_of(scheduled(held, plan), held.cost, law)
    return burden.power(round(row["clock_mhz"]), round(1e6 * row["step_ms"])).energy_j


def _drawing(law: PowerSection, watts: float, **changed: Any) -> PowerSection:
    told: dict[str, Any] = {"draw_w": watts, **changed}
    every = (replace(x, **told) if x.family == "collective" else x for x in law.families)
    return replace(law, families=tuple(every))
