"""The law of power of one GPU: what families of ops draw, and how their times depend on the clock.

GEMMs that run without a pause, at the power cap, determine the law as far as nothing else is known.
A lasting load of one family determines its draw, and ops timed while the clock falls determine its
elasticity. Loads that all run at the cap leave the exponent as assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from simulator.lookup import Provenance, ProvenanceKind
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
    (from µs, MHz) of its GEMMs' timings; attention was timed at the first of these.
    """
    lasting_mhz, lasting_w = lasting
    gemm_w = (lasting_w - idle_w) * (boost_mhz / lasting_mhz) ** EXPONENT
    gemm_error = ASSUMED_ERROR if gemm_kind == "assumed" else SEEN_ERROR
    families = [
        FamilyPower(
            family=name, draw_w=_rounded(share * gemm_w), elasticity=ELASTICITIES[name],
            kind=gemm_kind if name == "gemm" else "assumed", error=error,
        )
        for name, (share, error) in {"gemm": (1.0, gemm_error), **DRAWS}.items()
    ]  # fmt: skip
    gemms = [RowClock("gemm", from_us, _rounded(mhz)) for from_us, mhz in clocks]
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
    with ``clock_mhz`` and ``power_w``.
    """
    rest = loads.get(REST)
    idle_w = _rounded(rest["power_w"]) if rest else known.idle_w
    families = []
    for one in known.families:
        alone = loads.get(one.family)
        if alone:
            share = (alone["clock_mhz"] / known.boost_mhz) ** known.exponent
            draw_w = _rounded(max(0.0, alone["power_w"] - idle_w) / share)
            one = replace(one, draw_w=draw_w, kind="fitted", error=SEEN_ERROR)
        if one.family in elasticities:
            told = min(1.0, max(0.0, elasticities[one.family]))
            one = replace(one, elasticity=_rounded(told))
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
    a section.
    """
    if known is None:
        return (REST, MIXED, *COMPUTE)
    return tuple(name for name in COMPUTE if known.family(name).kind == "assumed")


MIXED: Final = "mixed"
"""The load of all families in turn on a rested GPU, which shows their elasticities."""


def _rounded(value: float) -> float:
    """Return ``value`` with as many digits as noisy samples justify, the same on every machine."""
    return float(f"{value:.4g}")
