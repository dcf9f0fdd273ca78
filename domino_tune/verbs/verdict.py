"""The verdict: the chosen plan, the baseline and the rivals on the same draws of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from domino_tune.base.cores import Ahead, in_turn
from domino_tune.results.shown import slices_words
from domino_tune.results.simulate import CLEAR, Contestant, Verdict
from domino_tune.search.simulated import rival_plans
from domino_tune.verbs.machines import DRAWS, SEED, Machines, machines_of, middle_of
from domino_tune.verbs.resolve import Chosen, baseline_plan
from simulator.case import Case
from simulator.dtypes import MS_PER_NS
from simulator.memory import peak_bytes
from simulator.overlap import RIVAL_NAMES, RUNS_IN
from simulator.plan import SlicePlan
from simulator.predict import predict
from simulator.usable import Usable, percent

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAMES: Final[Mapping[str, str]] = {
    "megatron": "Megatron", "domino": "Domino", **RIVAL_NAMES,
}  # fmt: skip
"""Strategy -> its name in a sentence."""
Rivals = Callable[[], Mapping[str, SlicePlan]]
"""Gives each rival's best plan, once."""


def compared(
    case: Case, chosen: Chosen, ahead: Ahead = in_turn, rivals: Rivals | None = None
) -> tuple[Verdict, Machines]:
    """Return which strategy is the fastest on machines drawn from the profile's errors, and these.
    ``rivals``: their plans, where they are tuned already."""
    plans = contestants_of(case, chosen, rivals)
    known = {
        name: found()
        for name, found in ahead(lambda name: _time_and_peak(case, plans[name]), plans)
    }
    nominal = {name: time_ns for name, (time_ns, _) in known.items()}
    machines = machines_of(case, plans, nominal, ahead)
    peaks = {name: peak for name, (_, peak) in known.items()}
    return _verdict(case, machines, peaks, mine=chosen.plan.strategy), machines


def verdict_of(case: Case, chosen: Chosen, ahead: Ahead = in_turn) -> Verdict:
    """Return the verdict of ``compared``."""
    return compared(case, chosen, ahead)[0]


def _verdict(case: Case, machines: Machines, peaks: Mapping[str, int], mine: str) -> Verdict:
    plans, nominal = machines.plans, machines.nominal_ns
    baseline, *_ = plans
    drawn = {name: machines.times_ns(name) for name in plans}
    running = [name for name in plans if peaks[name] <= case.memory.sure_bytes]
    fastest = Counter[str]()
    if running:
        times = np.stack([drawn[name] for name in running])
        fastest.update(running[index] for index in times.argmin(axis=0))
    contestants = tuple(
        _contestant(
            one, name, nominal[baseline] / nominal[name] , nominal[name],
            drawn[baseline] / drawn[name], fastest[name] / DRAWS, case.memory, peaks[name],
        )
        for name, one in plans.items()
    )  # fmt: skip
    return Verdict(
        text=_text(contestants),
        contestants=contestants,
        draws=DRAWS,
        seed=SEED,
        unsure=machines.unsure(mine if mine in plans else baseline, baseline),
    )


def contestants_of(case: Case, chosen: Chosen, rivals: Rivals | None = None) -> dict[str, Chosen]:
    """Return the plans to compare, by strategy: first Megatron-LM, the reference for the others,
    then the chosen plan and the rivals.

    If the chosen plan is Megatron-LM's, it is itself the first, whatever its mode: no row is a
    slower version of it.
    """
    mine = chosen.plan.strategy
    plans = {"megatron": chosen if mine == "megatron" else Chosen.of(case, baseline_plan(case))}
    if mine != "no_comm":
        plans[mine] = chosen
    for strategy, plan in (rivals() if rivals else rival_plans(case)).items():
        plans.setdefault(strategy, Chosen.of(case, plan))
    return plans


def _time_and_peak(case: Case, one: Chosen) -> tuple[int, int]:
    return (
        predict(case, one.plan, one.order).makespan_ns, peak_bytes(case, one.plan, one.order),
    )  # fmt: skip


def _contestant(
    one: Chosen, name: str, speedup: float, iteration_ns: int, drawn: NDArray[np.float64],
    chance: float, memory: Usable, peak: int,
) -> Contestant:  # fmt: skip
    low, high = middle_of(drawn)
    return Contestant(
        strategy=name,
        name=_name(one.plan),
        plan=one.plan,
        iteration_ms=iteration_ns * MS_PER_NS,
        speedup=speedup,
        low=low,
        high=high,
        chance=chance,
        fits=peak <= memory.usable_bytes,
        fits_chance=memory.chance(peak),
        runs_in=RUNS_IN[name],
    )


def _name(plan: SlicePlan) -> str:
    """Return the strategy, with its difference from the Megatron that most people train with."""
    name = NAMES.get(plan.strategy, plan.strategy)
    sharded = plan.strategy == "megatron" and plan.sequence_parallel
    return name + " with sequence parallelism" * sharded


def _text(contestants: Sequence[Contestant]) -> str:
    """Return the answer in words: what to do, what it is worth, and what comes next: Domino, if the
    fastest is another one, and the next best."""
    baseline, *others = contestants
    fit = [one for one in contestants if one.recommended]
    if not fit:
        return "No plan fits the memory with a chance of 80 % or more."
    best = max(fit, key=lambda one: one.chance)
    rest = [one for one in others if one is not best and one.recommended]
    rest.sort(key=lambda one: (-one.chance, -one.speedup))
    told = [one for one in rest if one.strategy == "domino"]
    told += [one for one in rest if one not in told][: 2 - len(told)]
    next_ones = ", ".join(f"{one.name} {one.speedup:.2f}x ({one.chance:.0%})" for one in told)
    return f"{_first(best, baseline)}" + (f" Next: {next_ones}." if next_ones else "")


def _first(best: Contestant, baseline: Contestant) -> str:
    """Return the strategy that is most often the fastest, what it is worth, and how sure that
    is."""
    clear, chance = best.chance >= CLEAR, f"{best.chance:.0%}"
    if best is baseline:
        fastest = f"{best.name} is the fastest in {chance} of draws"
        return f"{'Do not use Domino here' if clear else 'Nothing is clearly faster'}: {fastest}."
    name = best.name
    if best.strategy == "domino":
        name += f" in {slices_words(best.plan)}"
    worth = f"{best.speedup:.2f} times as fast as {baseline.name} ({best.low:.2f}–{best.high:.2f})"
    if not baseline.recommended:
        chance_to_fit = f"fits with a chance of {percent(baseline.fits_chance)}"
        worth += f", which {chance_to_fit if baseline.fits else 'does not fit'}"
    if clear:
        return f"Use {name}: {worth}, the fastest in {chance} of draws."
    return f"It is open which is fastest. {name}: {worth}, ahead in {chance} of draws."
