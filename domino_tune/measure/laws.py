"""Laws fitted to probes: of power, of idle lanes, and of cores that waited.

GEMMs that run without a pause, at the power cap, determine the law as far as nothing else is known.
A lasting load of one family determines its draw, and ops timed while the clock falls determine its
elasticity. Loads that all run at the cap leave the exponent as assumed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from domino_tune.base.units import rounded
from simulator.cpu_hosts import IdleLane, ResumeFit, ResumeRow
from simulator.lookup import Provenance, ProvenanceKind
from simulator.lookup.collectives import CollectiveRow
from simulator.power import FamilyPower, PowerSection, RowClock

Row = Mapping[str, Any]
REST: Final = "rest"
COMPUTE: Final = ("gemm", "attention", "pointwise")
EXPONENT: Final = 2.0
"""Dynamic power is proportional to the clock and to the square of the voltage, which follows the
clock in part: the exponent is between 1 (constant voltage, as far below boost) and 3
(proportional).
"""
CLOCK_SPREAD: Final = 0.03
DRAWS: Final = {"attention": (1.0, 0.2), "pointwise": (0.3, 0.3), "collective": (0.15, 0.5)}
"""(draw as a share of GEMMs' watts above idle, its error) of the other families, until their own
loads are measured: attention keeps the same tensor cores busy, copies the memory, and a collective
some SMs and the links.
"""
SEEN_ERROR: Final = 0.1
"""Expected error of the draw of a family that was measured at one clock."""
ASSUMED_ERROR: Final = 0.25
ELASTICITIES: Final = {"gemm": 1.0, "attention": 1.0, "pointwise": 0.0, "collective": 0.2}
"""897 TFLOP/s, the fastest GEMM of our H200, is 666 × 1,980 / 1,470: GEMMs scale with the clock."""
MEASURED: Final = Provenance(
    kind="fitted",
    source="domino_tune profile: lasting loads on one GPU, NVML's power and clock",
    note="Ops were timed in bursts: at the clock at which GEMMs that last would run at the rate of "
    "those of the first moments after rest. Assumed: the exponent, GPUs' spread, what collectives "
    "draw, and families of kind 'assumed'.",
)


def power_section(
    *,
    boost_mhz: int,
    cap_w: float,
    idle_w: float,
    lasting: tuple[float, float],
    clocks: Iterable[tuple[float, float]],
    gemm_kind: ProvenanceKind,
    kinds: Mapping[str, ProvenanceKind],
    provenance: Provenance,
) -> PowerSection:
    """Return the section of a GPU whose lasting GEMMs run at ``lasting`` (MHz, W). ``clocks``:
    (from µs, MHz) of its GEMMs' timings; attention was timed at the first of these."""
    lasting_mhz, lasting_w = lasting
    gemm_w = (lasting_w - idle_w) * (boost_mhz / lasting_mhz) ** EXPONENT
    gemm_error = ASSUMED_ERROR if gemm_kind == "assumed" else SEEN_ERROR
    families = [
        FamilyPower(
            family=name, draw_w=rounded(share * gemm_w), elasticity=ELASTICITIES[name],
            kind=gemm_kind if name == "gemm" else "assumed", error=error,
        )
        for name, (share, error) in {"gemm": (1.0, gemm_error), **DRAWS}.items()
    ]  # fmt: skip
    gemms = [RowClock("gemm", from_us, rounded(mhz)) for from_us, mhz in clocks]
    short = RowClock("attention", 0.0, gemms[0].clock_mhz)
    return PowerSection(
        boost_mhz=boost_mhz, cap_w=cap_w, idle_w=idle_w, exponent=EXPONENT,
        clock_spread=CLOCK_SPREAD, families=tuple(families),
        row_clocks=(short, RowClock("collective", 0.0, float(boost_mhz)), *gemms),
        kinds={**kinds, "exponent": "assumed", "clock_spread": "assumed"}, provenance=provenance,
    )  # fmt: skip


def power_law(
    loads: Mapping[str, Row], elasticities: Mapping[str, float], known: PowerSection
) -> PowerSection:
    """Return ``known`` updated by lasting loads: those of families that ran alone and of rest, each
    with ``clock_mhz`` and ``power_w``."""
    rest = loads.get(REST)
    idle_w = rounded(rest["power_w"]) if rest else known.idle_w
    families = []
    for one in known.families:
        alone = loads.get(one.family)
        if alone:
            share = (alone["clock_mhz"] / known.boost_mhz) ** known.exponent
            draw_w = rounded(max(0.0, alone["power_w"] - idle_w) / share)
            one = replace(one, draw_w=draw_w, kind="fitted", error=SEEN_ERROR)
        if one.family in elasticities:
            told = min(1.0, max(0.0, elasticities[one.family]))
            one = replace(one, elasticity=rounded(told))
        families.append(one)
    kinds = {**known.kinds, "idle_w": "measured"} if rest else known.kinds
    return replace(known, idle_w=idle_w, families=tuple(families), kinds=kinds)


def with_loads(known: PowerSection | None, message: Row) -> PowerSection | None:
    """Return the section updated by a message's loads; None if neither rest nor GEMMs are known."""
    loads = {row["load"]: row for row in message["loads"]}
    if known is None:
        if not {REST, "gemm"} <= loads.keys():
            return None
        rest, gemm = loads[REST], loads["gemm"]
        known = power_section(
            boost_mhz=message["boost_mhz"], cap_w=message["cap_w"], idle_w=rest["power_w"],
            lasting=(gemm["clock_mhz"], gemm["power_w"]),
            clocks=[(0.0, min(message["boost_mhz"], gemm["burst_mhz"]))], gemm_kind="fitted",
            kinds={"boost_mhz": "measured", "cap_w": "measured", "idle_w": "measured"},
            provenance=MEASURED,
        )  # fmt: skip
    found: dict[str, float] = {}
    for row in loads.values():
        found |= row.get("elasticity", {})
    return power_law(loads, found, known)


def lacking_loads(known: PowerSection | None) -> tuple[str, ...]:
    """Return the loads whose law is still assumed, most useful first; all of them without
    a section."""
    if known is None:
        return (REST, MIXED, *COMPUTE)
    return tuple(name for name in COMPUTE if known.family(name).kind == "assumed")


MIXED: Final = "mixed"
"""The load of all families in turn on a rested GPU, which shows their elasticities."""


# Idle lane law ------------------------------------------------------------------------------------
# The law of idle lanes, from collectives timed behind a lane that idled and behind each other.
#
# The law (``simulator.cpu_hosts``) has three unknowns: a bucket's size, the time that a whole
# bucket takes, and the time of waking. For a given size both times are the least-squares ones that
# are not negative; the size is the one that leaves the smallest squares.

SIZES: Final = tuple(round(1024 * 2 ** (step / 4)) for step in range(45))
"""Buckets that are tried, bytes: 1 KiB to 2 MiB."""
LEAST_US: Final = 20.0
"""A difference of two timings below this is chance."""


class _Fit(NamedTuple):
    """A law that was tried, and the squares that it leaves."""

    squares: float
    burst_bytes: int
    burst_us: float
    wake_us: float


def idle_lane_law(rows: Sequence[CollectiveRow]) -> IdleLane | None:
    """Return the law of the rows; None where it makes no difference whether a lane idled."""
    timed = [row for row in rows if row.behind_us]
    if not timed:
        return None
    # A row that spreads weighs less: these are the roots of the weights.
    roots = 1 / np.hypot(LEAST_US, [row.spread_us for row in timed])
    sent = np.array([row.signature.bus_bytes if row.nodes > 1 else 0.0 for row in timed])
    longer_us = np.array([row.behind_us - row.median_us for row in timed])
    fit = min(_fit(sent, longer_us, roots, size) for size in SIZES)
    most_us = fit.burst_us + fit.wake_us
    if most_us < LEAST_US:
        return None
    return IdleLane(
        burst_bytes=fit.burst_bytes,
        burst_us=fit.burst_us,
        wake_us=fit.wake_us,
        error=math.sqrt(fit.squares / float(roots @ roots)) / most_us,
        samples=sum(row.samples for row in timed),
    )


def _fit(
    sent: NDArray[np.float64], longer_us: NDArray[np.float64], roots: NDArray[np.float64], size: int
) -> _Fit:
    """Return the law with a bucket of ``size``. ``sent``: bytes that rows send between nodes, as
    links of a node have no bucket; ``roots`` of the rows' weights."""
    from scipy.optimize import nnls

    terms = np.column_stack([np.minimum(1.0, sent / size), np.full_like(sent, -1.0)])
    (burst_us, wake_us), left = nnls(terms * roots[:, None], longer_us * roots)
    return _Fit(float(left**2), size, float(burst_us), float(wake_us))


# Resume law ---------------------------------------------------------------------------------------
# The law of the time that compute loses after a wait, fitted to steps in which a rank slept.
#
# Each stretch is the compute after one wait. Its law (``simulator.cpu_hosts``) has two unknowns:
# the total cost of a wait of that length, and how soon it is paid. For a given recovery the cost is
# the least-squares one; the recovery is the one of ``RECOVERIES_US`` with the smallest sum of
# squares.

RECOVERIES_US: Final = (500.0, 1000.0, 2000.0, 4000.0, 8000.0)
LONGEST_US: Final = 16_000
"""Length of the compute after a wait that counts; later ops have recovered."""
ODD: Final = 0.1
"""Share of stretches dropped at either end, as disturbed."""
LEAST_ERROR: Final = 0.1
"""Lowest relative error of the law: its halves may agree better by chance."""


class Resumption(NamedTuple):
    """An op after a wait: its usual duration, and how much longer it took (µs)."""

    usual_us: float
    extra_us: float


class WaitStretch(NamedTuple):
    """A wait of ``idle_us``, and the ops after it, up to the next wait."""

    idle_us: float
    ops: tuple[Resumption, ...]


def resume_law(stretches: Mapping[float, Sequence[WaitStretch]]) -> ResumeFit:
    """Return the law; ``stretches``: by the nominal length of their wait, oldest first."""
    kept = {pause: _usual(found) for pause, found in sorted(stretches.items()) if found}
    recovery_us = min(
        RECOVERIES_US,
        key=lambda candidate: sum(_resume_fit(found, candidate)[1] for found in kept.values()),
    )
    rows = tuple(
        ResumeRow(
            statistics.median(one.idle_us for one in found),
            max(0.0, _resume_fit(found, recovery_us)[0]),
        )
        for found in kept.values()
    )
    return ResumeFit(
        rows=rows,
        recovery_us=recovery_us,
        error=_error(list(stretches.values()), recovery_us),
        samples=sum(len(found) for found in stretches.values()),
    )


def _error(stretches: Sequence[Sequence[WaitStretch]], recovery_us: float) -> float:
    """Return by what share of the costs two halves of the stretches differ: early and late ones, or
    every other one; the larger of the two."""
    splits = (
        [(found[: len(found) // 2], found[len(found) // 2 :]) for found in stretches],
        [(found[::2], found[1::2]) for found in stretches],
    )
    return max(LEAST_ERROR, *(_apart(halves, recovery_us) for halves in splits))


def _apart(
    halves: Sequence[tuple[Sequence[WaitStretch], Sequence[WaitStretch]]], recovery_us: float
) -> float:
    apart = together = 0.0
    for pair in halves:
        first, second = (_resume_fit(_usual(half), recovery_us)[0] for half in pair)
        apart += abs(first - second)
        together += max(0.0, first + second)
    return min(1.0, apart / together) if together else 1.0


def _usual(stretches: Sequence[WaitStretch]) -> Sequence[WaitStretch]:
    """Return the stretches without the slowest and the fastest ``ODD`` share."""
    ordered = sorted(stretches, key=lambda one: sum(op.extra_us for op in one.ops))
    odd = round(len(ordered) * ODD)
    return ordered[odd : len(ordered) - odd]


def _shares(ops: Sequence[Resumption], recovery_us: float) -> Iterator[tuple[float, float]]:
    """Yield for each op its share of the cost of the wait, and how much longer it took, µs."""
    owed, passed_us = 1.0, 0.0
    for op in ops:
        if passed_us > LONGEST_US:
            return
        share = owed * op.usual_us / (op.usual_us + recovery_us)
        yield share, op.extra_us
        owed -= share
        passed_us += op.usual_us


def _resume_fit(stretches: Sequence[WaitStretch], recovery_us: float) -> tuple[float, float]:
    """Return the cost of a wait (µs) that fits best, and the sum of squares that remains."""
    pairs = [pair for one in stretches for pair in _shares(one.ops, recovery_us)]
    squares = sum(share * share for share, _ in pairs)
    cost = sum(share * extra for share, extra in pairs) / squares if squares else 0.0
    return cost, sum((extra - cost * share) ** 2 for share, extra in pairs)
