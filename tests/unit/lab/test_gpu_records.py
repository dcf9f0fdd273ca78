"""Tables of a GPU's records, from records that a law itself would leave: it is found again."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from domino_tune.store.profiles import load_profile
from lab.bench.gpu_records import NAME, case_of, clock_tables, fitted_law
from lab.gpu.cases import PLANS
from lab.verdict import count_verdicts
from simulator.power import PowerSection
from simulator.predict import played

ELASTICITY = {"gemm": 0.9, "attention": 0.8, "pointwise": 0.1}
DRAWS = {"gemm": 800.0, "attention": 900.0, "pointwise": 500.0, "collective": 120.0}
IDLE_W = 100.0


@cache
def true_law() -> PowerSection:
    """A GPU other than the profile says."""
    known = load_profile(NAME).power
    assert known is not None
    families = tuple(
        replace(
            one, draw_w=DRAWS[one.family],
            elasticity=ELASTICITY.get(one.family, one.elasticity),
        )
        for one in known.families
    )  # fmt: skip
    return replace(known, idle_w=IDLE_W, families=families)


@cache
def clock_rows() -> list[dict[str, Any]]:
    """What stage ``clocks`` would find on it."""
    law, profile = true_law(), replace(load_profile(NAME), power=true_law())
    rows: list[dict[str, Any]] = [{"case": "rest", "clock_mhz": 345.0, "power_w": IDLE_W}]
    for family in ("gemm", "attention", "pointwise"):
        share = ((law.cap_w - law.idle_w) / DRAWS[family]) ** (1 / law.exponent)
        mhz = law.boost_mhz * min(1.0, share)
        watts = law.idle_w + DRAWS[family] * (mhz / law.boost_mhz) ** law.exponent
        rows.append({"case": f"{family} alone", "clock_mhz": mhz, "power_w": watts})
    for one in PLANS:
        found = played(case_of(one, profile), one.plan)
        assert found.power is not None
        step_ms = found.totals.makespan_ns / 1e6
        rows.append(
            {
                "case": one.name, "clock_mhz": float(found.power.clock_mhz), "step_ms": step_ms,
                "power_w": found.power.energy_j / step_ms * 1e3, "step_j": found.power.energy_j,
            }
        )  # fmt: skip
    return rows


def sustained_rows() -> list[dict[str, Any]]:
    """Some layers whose clock fell, and one whose clock did not."""
    near = [{name: value + off for name, value in ELASTICITY.items()} for off in (-0.01, 0, 0.01)]
    return [{"elasticity": found} for found in (*near, {})]


def test_a_law_is_found_again() -> None:
    profile = load_profile(NAME)
    found = fitted_law(clock_rows(), sustained_rows(), profile)
    for one in true_law().families:
        again = found.family(one.family)
        assert again.draw_w == pytest.approx(one.draw_w, rel=0.02), one.family
        assert again.elasticity == pytest.approx(one.elasticity)
        assert again.kind == "fitted"
    assert (found.idle_w, found.kinds["idle_w"]) == (IDLE_W, "measured")
    assert found.exponent == true_law().exponent
    assert profile.power is not None
    assert fitted_law([], [], profile).families == profile.power.families


def test_clocks_of_withheld_plans_are_held_against_the_law() -> None:
    measured, checks = clock_tables(clock_rows(), sustained_rows(), load_profile(NAME))
    assert len(measured.rows) == 4 + len(PLANS)
    assert count_verdicts([checks]) == (2, 0)
    wrong = [
        {**row, "clock_mhz": row["clock_mhz"] * 1.1} if row["case"].startswith("llama") else row
        for row in clock_rows()
    ]
    _, checks = clock_tables(wrong, sustained_rows(), load_profile(NAME))
    assert count_verdicts([checks]) == (0, 2)
