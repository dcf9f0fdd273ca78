"""What the power cap takes of Domino's gain.

Hidden communication leaves the energy of an iteration as it was and its time shorter, so power
rises; where the cap holds the clock, part of the gain goes to a lower one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final

from domino_tune.base.tables import Table
from domino_tune.verbs.resolve import baseline_plan
from lab.bench.baselines import JOBS, PROFILES, TP, case_of, cuts
from lab.bench.cases import fastest, time_ms
from simulator.case import Case
from simulator.plan import SlicePlan

SHARES: Final = (0.6, 0.7, 0.85, 1.0, 1.15)
"""Caps, as shares of each GPU's own."""
Plans = tuple[SlicePlan, SlicePlan]


def power() -> list[Table]:
    """Return a row a job and profile, then two jobs under several caps."""
    return [
        Table(
            title=f"What power takes of Domino's gain at TP {TP}, both with SP",
            columns=("profile", "model", ">gain, clock free", ">under the cap", ">taken"),
            rows=[_job(*job) for job in product(PROFILES, JOBS)],
            notes=["Draws are known at one clock of one H200; what stands on them is assumed."],
        ),
        Table(
            title="The same plans' gain by the cap, as a share of the GPU's own",
            columns=("profile", "model", *(f">{share:.0%}" for share in SHARES)),
            rows=[_caps(*job) for job in product(PROFILES, ("gpt3-13b", "llama3-70b"))],
        ),
    ]


def plans_of(case: Case) -> Plans:
    """Return the baseline and the best usual cut at the profile's own cap, both with SP."""
    return baseline_plan(case), fastest(case, cuts(case, True))[1]


def gain_of(case: Case, plans: Plans) -> float:
    """Return how much faster the second plan is."""
    return time_ms(case, plans[0]) / time_ms(case, plans[1])


def _job(profile: str, model: str) -> tuple[str, ...]:
    case = case_of(profile, model, TP)
    plans = plans_of(case)
    unheld = replace(case, profile=replace(case.profile, power=None))
    free, gain = gain_of(unheld, plans), gain_of(case, plans)
    taken = f"{(free - gain) / (free - 1):.0%}" if free > 1 else "–"
    return profile, model, f"{free:.3f}x", f"{gain:.3f}x", taken


def _caps(profile: str, model: str) -> tuple[str, ...]:
    case = case_of(profile, model, TP)
    assert case.profile.power is not None
    plans, gains = plans_of(case), []
    for share in SHARES:
        cap_w = float(round(share * case.profile.power.cap_w))
        held = replace(case, cluster=replace(case.cluster, power_cap_w=cap_w))
        gains.append(f"{gain_of(held, plans):.3f}x")
    return profile, model, *gains
