"""What the power cap takes of Domino's gain, and two published runs before and after.

Hidden communication leaves the energy of an iteration as it was and its time shorter, so power
rises; where the cap holds the clock, part of the gain goes to a lower one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from operator import itemgetter
from typing import Final, NamedTuple

from domino_tune.base.tables import Table
from domino_tune.store.profiles import load_profile
from domino_tune.verbs.resolve import baseline_plan
from lab.bench.baselines import JOBS, case_of, cuts
from lab.bench.runs import CI_KEYS, Run, async_tp_run, ci_run, userbuffers_runs
from simulator.case import Case
from simulator.plan import SlicePlan
from simulator.predict import played, predict
from simulator.units import MS_PER_NS

TP: Final = 8
PROFILES: Final = ("h100-dgx", "h200-sxm", "b200-sxm", "a100-sxm")
SHARES: Final = (0.6, 0.7, 0.85, 1.0, 1.15)
"""Caps, as shares of each GPU's own."""


class Held(NamedTuple):
    """Megatron-LM and Domino under one cap; ``low``, ``high``: the gain if ops draw more, or less,
    than the profile says, by the expected error."""

    gain: float
    low: float
    high: float
    clocks_mhz: tuple[int, int]
    joules: tuple[float, float]


def power() -> list[Table]:
    """Return a row a job and profile, then the caps of one job, then published runs."""
    return [_jobs(), _caps(), _published()]


def plans_of(case: Case) -> tuple[SlicePlan, SlicePlan]:
    """Return the baseline and the best usual cut at the profile's own cap, both with SP."""
    times = ((predict(case, plan).makespan_ns, plan) for plan in cuts(case, True))
    return baseline_plan(case), min(times, key=itemgetter(0))[1]


def unheld(case: Case) -> Case:
    """Return ``case`` on GPUs whose clock nothing holds."""
    return replace(case, profile=replace(case.profile, power=None))


def held(case: Case, plans: tuple[SlicePlan, SlicePlan]) -> Held:
    """Return what the cap leaves of the gain."""
    assert case.power is not None
    runs = [played(case, plan) for plan in plans]
    gain = runs[0].totals.makespan_ns / runs[1].totals.makespan_ns
    others = [_gain(_drawing(case, up=up), plans) for up in (True, False)]
    first, second = (run.power for run in runs)
    assert first is not None
    assert second is not None
    return Held(
        gain, min(gain, *others), max(gain, *others),
        (first.clock_mhz, second.clock_mhz),
        (first.energy_j * TP / case.tokens, second.energy_j * TP / case.tokens),
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


def _gain(case: Case, plans: tuple[SlicePlan, SlicePlan]) -> float:
    base_ns, sliced_ns = (predict(case, plan).makespan_ns for plan in plans)
    return base_ns / sliced_ns


def _jobs() -> Table:
    rows = []
    for profile, model in product(PROFILES, JOBS):
        case = case_of(profile, model, TP)
        plans = plans_of(case)
        free, found = _gain(unheld(case), plans), held(case, plans)
        rows.append((profile, model, f"{free:.3f}x", *_columns(found), _taken(free, found.gain)))
    return Table(
        title=f"What power takes of Domino's gain at TP {TP}, both with SP",
        columns=(
            "profile", "model", ">gain, clock free", ">under the cap", ">if draws are wrong",
            ">MHz, Megatron", ">Domino", ">J a token, Megatron", ">Domino", ">taken",
        ),
        rows=rows,
        notes=["Draws are known at one clock of one H200; what stands on them is assumed."],
    )  # fmt: skip


def _columns(found: Held) -> tuple[str, ...]:
    return (
        f"{found.gain:.3f}x", f"{found.low:.3f}–{found.high:.3f}",
        *(f"{mhz:,}" for mhz in found.clocks_mhz), *(f"{joules:.3f}" for joules in found.joules),
    )  # fmt: skip


def _taken(free: float, gain: float) -> str:
    return f"{(free - gain) / (free - 1):.0%}" if free > 1 else "–"


def _caps() -> Table:
    rows = []
    for profile, model in product(PROFILES, ("gpt3-13b", "llama3-70b")):
        case = case_of(profile, model, TP)
        plans, own = plans_of(case), load_profile(profile).power
        assert own is not None
        for share in SHARES:
            cap_w = round(share * own.cap_w)
            there = replace(case, cluster=replace(case.cluster, power_cap_w=float(cap_w)))
            rows.append((profile, model, f"{cap_w:,} W", *_columns(held(there, plans))))
    return Table(
        title="The same plans under several caps",
        columns=(
            "profile", "model", ">cap", ">gain", ">if draws are wrong", ">MHz, Megatron",
            ">Domino", ">J a token, Megatron", ">Domino",
        ),
        rows=rows,
    )  # fmt: skip


def _published() -> Table:
    keys = tuple(key for keys in CI_KEYS.values() for key in keys)
    runs = [*(ci_run(gpu, keys) for gpu in ("h100", "a100")), *userbuffers_runs(), async_tp_run()]
    return Table(
        title="Published runs, ms: at the clock of the timings, and under the cap",
        columns=("run", ">measured", ">before", ">error", ">after", ">error", ">MHz", ">W"),
        rows=[_before_and_after(run) for run in runs],
    )  # fmt: skip


def _before_and_after(run: Run) -> tuple[str, ...]:
    capless = replace(run.case.cluster, power_cap_w=0.0)
    before = unheld(replace(run.case, cluster=capless))
    before_ms = predict(before, run.plan).makespan_ns * MS_PER_NS
    after = played(run.case, run.plan)
    after_ms = after.totals.makespan_ns * MS_PER_NS
    assert after.power is not None
    return (
        run.label, f"{run.measured_ms:,.1f}", f"{before_ms:,.1f}",
        f"{before_ms / run.measured_ms - 1:+.1%}", f"{after_ms:,.1f}",
        f"{after_ms / run.measured_ms - 1:+.1%}", f"{after.power.clock_mhz:,}",
        f"{after.power.passes_w:,.0f}",
    )  # fmt: skip
