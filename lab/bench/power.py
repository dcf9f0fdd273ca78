"""What the power cap takes of Domino's gain.

Hidden communication leaves the energy of an iteration as it was and its time shorter, so power
rises; where the cap holds the clock, part of the gain goes to a lower one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import baseline_plan
from lab.bench.baselines import JOBS, TP, case_of, cuts
from lab.bench.cases import fastest, time_ms
from simulator.case import Case
from simulator.plan import SlicePlan
from simulator.predict import played

PROFILES: Final = ("h100-dgx", "h200-sxm", "b200-sxm", "a100-sxm")
SHARES: Final = (0.6, 0.7, 0.85, 1.0, 1.15)
"""Caps, as shares of each GPU's own."""
HELD: Final = (
    ">if draws are wrong", ">MHz, Megatron", ">Domino", ">J a token, Megatron", ">Domino",
)  # fmt: skip
Plans = tuple[SlicePlan, SlicePlan]


class Held(NamedTuple):
    """Megatron-LM and Domino under one cap: the gain, and table cells of ``HELD``."""

    gain: float
    cells: tuple[str, ...]


def power() -> list[Table]:
    """Return a row a job and profile, then two jobs under several caps."""
    return [
        Table(
            title=f"What power takes of Domino's gain at TP {TP}, both with SP",
            columns=("profile", "model", ">gain, clock free", ">under the cap", *HELD, ">taken"),
            rows=[_job(*job) for job in product(PROFILES, JOBS)],
            notes=["Draws are known at one clock of one H200; what stands on them is assumed."],
        ),
        Table(
            title="The same plans under several caps",
            columns=("profile", "model", ">cap", ">gain", *HELD),
            rows=[
                row for job in product(PROFILES, ("gpt3-13b", "llama3-70b")) for row in _caps(*job)
            ],
        ),
    ]  # fmt: skip


def plans_of(case: Case) -> Plans:
    """Return the baseline and the best usual cut at the profile's own cap, both with SP."""
    return baseline_plan(case), fastest(case, cuts(case, True))[1]


def unheld(case: Case) -> Case:
    """Return ``case`` on GPUs whose clock nothing holds."""
    return replace(case, profile=replace(case.profile, power=None))


def held(case: Case, plans: Plans) -> Held:
    """Return what the cap leaves of the gain, also if ops draw more, or less, than the profile says
    by the expected error."""
    first, second = (played(case, plan) for plan in plans)
    gain = first.totals.makespan_ns / second.totals.makespan_ns
    gains = [gain, *(_gain(_drawing(case, up=up), plans) for up in (True, False))]
    states = [run.power for run in (first, second) if run.power is not None]
    return Held(
        gain,
        (
            f"{min(gains):.3f}–{max(gains):.3f}", *(f"{one.clock_mhz:,}" for one in states),
            *(f"{one.energy_j * TP / case.tokens:.3f}" for one in states),
        ),
    )  # fmt: skip


def _drawing(case: Case, *, up: bool) -> Case:
    """Return ``case`` with draws that are wrong by their expected errors, all the same way."""
    law = case.profile.power
    assert law is not None
    families = tuple(
        replace(one, draw_w=one.draw_w * (1 + one.error if up else 1 / (1 + one.error)))
        for one in law.families
    )
    return replace(case, profile=replace(case.profile, power=replace(law, families=families)))


def _gain(case: Case, plans: Plans) -> float:
    return time_ms(case, plans[0]) / time_ms(case, plans[1])


def _job(profile: str, model: str) -> tuple[str, ...]:
    case = case_of(profile, model, TP)
    plans = plans_of(case)
    free, (gain, cells) = _gain(unheld(case), plans), held(case, plans)
    taken = f"{(free - gain) / (free - 1):.0%}" if free > 1 else "–"
    return profile, model, f"{free:.3f}x", f"{gain:.3f}x", *cells, taken


def _caps(profile: str, model: str) -> list[tuple[str, ...]]:
    case, own = case_of(profile, model, TP), load_profile(profile).power
    assert own is not None
    plans, rows = plans_of(case), []
    for share in SHARES:
        cap_w = round(share * own.cap_w)
        there = replace(case, cluster=replace(case.cluster, power_cap_w=float(cap_w)))
        gain, cells = held(there, plans)
        rows.append((profile, model, f"{cap_w:,} W", f"{gain:.3f}x", *cells))
    return rows
