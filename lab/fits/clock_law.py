"""The law of power from a GPU's own records: lasting loads (stage ``clocks``), and ops whose clock
fell while they ran (stage ``sustained``).

A family's draw is that of its ops alone; elasticities are medians over layers. What collectives
draw is the energy that a step with them takes beyond what its other ops do. Loads that all run at
the cap do not tell the exponent: it stays as it was.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lab.fits.common import rounded
from simulator.case import Case
from simulator.clock import Burden
from simulator.plan import SlicePlan
from simulator.power import FamilyPower, PowerSection
from simulator.predict import scheduled

Row = Mapping[str, Any]
COLLECTIVE: Final = "collective"
SOURCE: Final = "scripts/gpu-profile --stage clocks and sustained: lasting loads on one GPU"


def clock_law(clocks: Sequence[Row], sustained: Iterable[Row], known: PowerSection) -> PowerSection:
    """Return ``known`` with what the records say of compute and of rest."""
    by_case = {row["case"]: row for row in clocks}
    rest = by_case.get("rest")
    idle_w = rest["power_w"] if rest else known.idle_w
    elasticities = _elasticities(sustained)
    families = []
    for one in known.families:
        alone = by_case.get(f"{one.family} alone")
        if alone:
            draw_w = (alone["power_w"] - idle_w) / _share(known, alone["clock_mhz"])
            one = replace(one, draw_w=rounded(draw_w), kind="fitted")
        if one.family in elasticities:
            one = replace(one, elasticity=elasticities[one.family])
        families.append(one)
    return replace(
        known, idle_w=rounded(idle_w), families=tuple(families),
        kinds={**known.kinds, "idle_w": "measured" if rest else known.kinds["idle_w"]},
        provenance=replace(known.provenance, source=SOURCE),
    )  # fmt: skip


def with_collectives(law: PowerSection, case: Case, plan: SlicePlan, row: Row) -> PowerSection:
    """Return ``law`` with the draw of collectives that gives a lasting step of ``plan`` the joules
    of its row; 0 where its other ops take them all."""
    none, one = (
        _step_j(_drawing(law, watts), case, plan, row) for watts in (0.0, 1.0)
    )  # fmt: skip
    draw_w = max(0.0, (row["step_j"] - none) / (one - none))
    return _drawing(law, rounded(draw_w), kind="fitted")


def _step_j(law: PowerSection, case: Case, plan: SlicePlan, row: Row) -> float:
    """Return the joules of a step at the row's clock and duration."""
    held = replace(case, profile=replace(case.profile, power=law))
    burden = Burden(scheduled(held, plan), held.cost, law)
    return burden.power(round(row["clock_mhz"]), round(1e6 * row["step_ms"])).energy_j


def _drawing(law: PowerSection, watts: float, **changed: Any) -> PowerSection:
    def of(one: FamilyPower) -> FamilyPower:
        if one.family != COLLECTIVE:
            return one
        return replace(one, draw_w=watts, **changed)

    return replace(law, families=tuple(map(of, law.families)))


def _share(law: PowerSection, clock_mhz: float) -> float:
    """Return what a family draws at a clock, of its draw at boost."""
    return float((clock_mhz / law.boost_mhz) ** law.exponent)


def _elasticities(sustained: Iterable[Row]) -> dict[str, float]:
    """Return each family's median, within what the law takes."""
    found: dict[str, list[float]] = {}
    for row in sustained:
        for family, value in row["elasticity"].items():
            found.setdefault(family, []).append(value)
    return {
        family: rounded(min(1.0, max(0.0, statistics.median(values))))
        for family, values in found.items()
    }
