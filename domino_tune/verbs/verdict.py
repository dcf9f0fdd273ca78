"""The verdict: the chosen plan, the baseline and the rivals on the same draws of the machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from domino_tune.base.cores import Ahead, in_turn
from domino_tune.results.shown import slices_words
from domino_tune.results.simulate import CLEAR, Contestant, Verdict
from domino_tune.search.simulated import rival_plans
from domino_tune.verbs.resolve import Chosen, baseline_plan
from simulator.case import Case
from simulator.clock import Played
from simulator.confidence import unknowns_of
from simulator.draws import FAMILIES, OWN_SHARE, PLAN_ERROR, Draw, Family, families_of
from simulator.dtypes import MS_PER_NS
from simulator.memory import peak_bytes
from simulator.op_table import listing_of
from simulator.ops import Signature
from simulator.overlap import RIVAL_NAMES, RUNS_IN
from simulator.plan import SlicePlan
from simulator.predict import played, predict
from simulator.usable import Usable, percent

if TYPE_CHECKING:
    from numpy.typing import NDArray

DRAWS: Final = 2000
SEED: Final = 0
TAIL: Final = 10
"""Percent of the draws below ``low``, and above ``high``."""
MICROS: Final = 3
"""Most micro-batches from which sensitivities are computed: the first, one in between,
and the last.
"""
NAMES: Final[Mapping[str, str]] = {
    "megatron": "Megatron", "domino": "Domino", **RIVAL_NAMES,
}  # fmt: skip
"""Strategy -> its name in a sentence."""
Contestants = Mapping[str, Chosen]
Rivals = Callable[[], Mapping[str, SlicePlan]]
"""Gives each rival's best plan, once."""


def verdict_of(
    case: Case, chosen: Chosen, ahead: Ahead = in_turn, rivals: Rivals | None = None
) -> Verdict:
    """Return which strategy is the fastest on machines drawn from the profile's errors. ``rivals``:
    their plans, where they are tuned already."""
    plans = contestants_of(case, chosen, rivals)
    known = {
        name: found()
        for name, found in ahead(lambda name: _time_and_peak(case, plans[name]), plans)
    }
    nominal = {name: time_ns for name, (time_ns, _) in known.items()}
    logs = _draw_logs(case, plans, nominal, ahead)
    peaks = {name: peak for name, (_, peak) in known.items()}
    baseline, *_ = plans
    drawn = logs.times_ns(nominal)
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
    mine = chosen.plan.strategy if chosen.plan.strategy in plans else baseline
    return Verdict(
        text=_text(contestants),
        contestants=contestants,
        draws=DRAWS,
        seed=SEED,
        unsure=logs.unsure(mine, baseline),
    )


def drawn_times_ns(case: Case, plans: Contestants) -> dict[str, NDArray[np.float64]]:
    """Return each plan's iteration time on each drawn machine, in ns; the machines are the same for
    all."""
    nominal = {name: predict(case, one.plan, one.order).makespan_ns for name, one in plans.items()}
    return _draw_logs(case, plans, nominal, in_turn).times_ns(nominal)


def middle_of(drawn: NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends of the interval that holds all draws except ``TAIL`` percent on each side."""
    low, high = np.percentile(drawn, [TAIL, 100 - TAIL])
    return float(low), float(high)


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


class _DrawnLogs:
    """Changes of the logarithm of each plan's time: for one standard error of each family
    (``families``), if something that the profile does not know is the case (``unknown``), and in
    each draw (``of``).

    The logarithm is assumed to be linear in the families' normal numbers, and in how far each
    unknown applies, the same for all plans: not at all in half of the draws, fully in a sixth.
    Errors of single signatures are weighted by their share of the time, and the simulator's own
    error is drawn for each plan.
    """

    def __init__(
        self,
        plans: Contestants,
        families: dict[str, dict[str, float]],
        unknown: dict[str, dict[str, float]],
        own: dict[str, dict[Signature, float]],
    ) -> None:
        random = np.random.default_rng(SEED)
        self.families = {**families, **unknown}
        z = random.standard_normal((max(1, len(families)), DRAWS))
        signatures = {signature: None for shares in own.values() for signature in shares}
        numbers = {signature: number for number, signature in enumerate(signatures)}
        own_z = random.standard_normal((len(numbers), DRAWS))
        distinct = list(dict.fromkeys(plans.values()))
        plan_z = random.standard_normal((len(distinct), DRAWS))
        so = np.clip(random.standard_normal((max(1, len(unknown)), DRAWS)), 0.0, 1.0)
        self.of: dict[str, NDArray[np.float64]] = {}
        for name, shares in own.items():
            changes = np.array([family[name] for family in families.values()] or [0.0])
            more = np.array([one[name] for one in unknown.values()] or [0.0])
            weights = np.zeros(len(numbers))
            for signature, share in shares.items():
                weights[numbers[signature]] = share
            of_plan = PLAN_ERROR * plan_z[distinct.index(plans[name])]
            self.of[name] = changes @ z + more @ so + weights @ own_z + of_plan

    def times_ns(self, nominal: Mapping[str, int]) -> dict[str, NDArray[np.float64]]:
        """Return each plan's time in each draw."""
        return {name: nominal[name] * np.exp(logs) for name, logs in self.of.items()}

    def unsure(self, mine: str, baseline: str) -> dict[str, float]:
        """Return how much a standard error of each family moves the speed-up of ``mine``."""
        moved = {
            family: abs(changes[mine] - changes[baseline])
            for family, changes in self.families.items()
        }
        ranked = sorted(moved.items(), key=lambda item: -item[1])
        return {family: change for family, change in ranked if change}


def _draw_logs(
    case: Case, plans: Contestants, nominal: Mapping[str, int], ahead: Ahead
) -> _DrawnLogs:
    # Exclude the constant of an iteration: errors do not scale it, and it would dominate short
    # iterations.
    running = {name: _running_ns(case, time_ns) / time_ns for name, time_ns in nominal.items()}
    short = _short(case)
    runs = {name: played(short, one.plan, one.order) for name, one in plans.items()}
    alone_ns = {name: _running_ns(short, run.totals.makespan_ns) for name, run in runs.items()}
    unknown = {one.name: one.draw for one in unknowns_of(case)}
    draws = {family: Draw({family: 1.0}) for family in FAMILIES} | unknown
    machines = {name: short.drawn(draw) for name, draw in draws.items()}
    asked = [
        (drawn, name) for name, run in runs.items() for drawn in (*_families(short, run), *unknown)
    ]
    found = ahead(lambda item: _time_ns(machines[item[0]], plans[item[1]]), asked)
    changed: dict[str, dict[str, float]] = {}
    for (drawn, name), time_ns in found:
        changes = changed.setdefault(drawn, dict.fromkeys(plans, 0.0))
        longer = _running_ns(short, time_ns()) / alone_ns[name] - 1
        changes[name] = math.log1p(running[name] * longer)
    families = {drawn: changes for drawn, changes in changed.items() if drawn not in unknown}
    more = {drawn: changes for drawn, changes in changed.items() if drawn in unknown}
    own = {name: _own_shares(run, running[name] / alone_ns[name]) for name, run in runs.items()}
    return _DrawnLogs(plans, families, more, own)


def _running_ns(case: Case, makespan_ns: int) -> int:
    """Return the time in which an iteration's ops run, without its constant; at least 1."""
    return max(1, makespan_ns - case.constant_ns)


def _families(case: Case, run: Played) -> list[Family]:
    """Return the families whose errors may move a plan's time."""
    fit = run.cost.contention.fit
    played_once = listing_of(run.schedule).played
    found = {family for one in played_once for family in families_of(one.signature)}
    if fit is not None and not run.cost.contention.is_off:
        found |= {"contention", "contention_of_collectives"}
    if run.cost.launch.mode != "none":
        found.add("launch")
    if case.power is not None:
        found.add("power")
    return [family for family in FAMILIES if family in found]


def _short(case: Case) -> Case:
    """Return a case of a few micro-batches on the busiest rank."""
    one = case.busiest if case.cluster.pp > 1 else case
    micros = min(MICROS, one.workload.grad_accumulation)
    return replace(one, workload=replace(one.workload, grad_accumulation=micros))


def _time_ns(case: Case, one: Chosen) -> int:
    return predict(case, one.plan, one.order).makespan_ns


def _own_shares(found: Played, share_per_ns: float) -> dict[Signature, float]:
    """Return how much the own error of each signature moves the logarithm of the time."""
    spent = {
        signature: count * found.cost.duration_ns(signature)
        for (signature, *_), count in listing_of(found.schedule).counts.items()
    }
    return {
        signature: OWN_SHARE * found.cost.estimate(signature).error * time_ns * share_per_ns
        for signature, time_ns in spent.items()
    }


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
