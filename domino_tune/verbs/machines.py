"""Machines drawn from a profile's errors: what iterations take on them.

The interval of an iteration and the verdict come from the same draws. A draw does not depend on
what else is compared: each family, each signature and each plan has its own stream of numbers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from domino_tune.base.cores import Ahead, in_turn
from domino_tune.verbs.resolve import Chosen
from simulator.case import Case
from simulator.clock import Played
from simulator.confidence import unknowns_of
from simulator.draws import FAMILIES, OWN_SHARE, PLAN_ERROR, Draw, Family, families_of
from simulator.op_table import listing_of
from simulator.ops import Signature
from simulator.predict import played, predict
from simulator.schedule import TP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

DRAWS: Final = 2000
SEED: Final = 0
TAIL: Final = 10
"""Percent of the draws below an interval, and above it."""
MICROS: Final = 3
"""Most micro-batches from which sensitivities are computed: the first, one in between,
and the last.
"""
LAWS: Final[frozenset[Family]] = frozenset({
    "contention", "contention_of_collectives", "contention_of_links", "launch", "power",
})  # fmt: skip
"""Families that may lengthen an iteration by more than they can shorten it: a clock has a highest
value, and what is hidden takes no time."""
UP, DOWN = 1.0, -1.0
"""Standard errors by which a family is off."""
Plans = Mapping[str, Chosen]
Changes = dict[str, dict[str, float]]
"""Family or unknown -> plan by name -> the change of the logarithm of its time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Machines:
    """Iterations of ``plans`` on drawn machines. ``nominal_ns``: their times on the profile's own.
    ``families``: changes for one standard error of each family, ``other_side`` for one less, of
    LAWS; ``unknown``: if something that the profile does not know is the case; ``own``: for one
    standard error of each signature alone.

    The logarithm of a time is assumed to be linear in the families' normal numbers, in those of
    LAWS on each side, and in how far each unknown applies, the same for all plans: not at all in
    half of the draws, fully in a sixth. The simulator's own error is drawn for each plan.
    """

    plans: Plans
    nominal_ns: Mapping[str, int]
    families: Changes
    other_side: Changes
    unknown: Changes
    own: Mapping[str, Mapping[Signature, float]]

    def times_ns(self, name: str, *, with_unknown: bool = True) -> Floats:
        """Return a plan's time in each draw."""
        logs = PLAN_ERROR * _normal(repr(self.plans[name].plan))
        for family, changes in self.families.items():
            z, up = _normal(family), changes[name]
            down = self.other_side[family][name] if family in self.other_side else -up
            logs = logs + np.where(z > 0, up, -down) * z
        for unknown, changes in self.unknown.items() if with_unknown else ():
            logs = logs + changes[name] * np.clip(_normal(unknown), 0.0, 1.0)
        for signature, share in self.own[name].items():
            logs = logs + share * _normal(repr(signature))
        found: Floats = self.nominal_ns[name] * np.exp(logs)
        return found

    def interval_ns(self, name: str, *, with_unknown: bool = True) -> tuple[float, float]:
        """Return the ends of the interval of a plan's time."""
        return middle_of(self.times_ns(name, with_unknown=with_unknown))

    def unsure(self, mine: str, baseline: str) -> dict[str, float]:
        """Return how much a standard error of each family moves the speed-up of ``mine``."""
        moved = {
            family: abs(changes[mine] - changes[baseline])
            for family, changes in {**self.families, **self.unknown}.items()
        }
        ranked = sorted(moved.items(), key=lambda item: -item[1])
        return {family: change for family, change in ranked if change}

    def longer(self, name: str) -> dict[str, float]:
        """Return by what share each unknown makes an iteration of a plan longer, if it does."""
        shares = {one: math.expm1(changes[name]) for one, changes in self.unknown.items()}
        return {one: share for one, share in shares.items() if share > 0}


@lru_cache(maxsize=512)
def _normal(name: str) -> Floats:
    """Return the number of ``name`` in each draw: always the same ones."""
    return np.random.default_rng((SEED, zlib.crc32(name.encode()))).standard_normal(DRAWS)


def middle_of(drawn: Floats) -> tuple[float, float]:
    """Return the ends of the interval that holds all draws except ``TAIL`` percent on each side."""
    low, high = np.percentile(drawn, [TAIL, 100 - TAIL])
    return float(low), float(high)


def machines_of(
    case: Case, plans: Plans, nominal_ns: Mapping[str, int] | None = None, ahead: Ahead = in_turn
) -> Machines:
    """Return the drawn machines of plans whose iterations take ``nominal_ns``, if that is known."""
    nominal_ns = nominal_ns or {name: _time_ns(case, one) for name, one in plans.items()}
    # Exclude the constant of an iteration: errors do not scale it, and it would dominate short
    # iterations.
    running = {name: _running_ns(case, ns) / ns for name, ns in nominal_ns.items()}
    short = _short(case)
    runs = {name: played(short, one.plan, one.order) for name, one in plans.items()}
    alone_ns = {name: _running_ns(short, run.totals.makespan_ns) for name, run in runs.items()}
    draws = {(one.name, UP): one.draw for one in unknowns_of(case)}
    unknown = tuple(draws)
    moved = {name: _sides(_families(short, run)) for name, run in runs.items()}
    draws |= {(one, z): Draw({one: z}) for sides in moved.values() for one, z in sides}
    machines = {drawn: short.drawn(draw) for drawn, draw in draws.items()}
    asked = [(drawn, name) for name, sides in moved.items() for drawn in (*sides, *unknown)]
    found = ahead(lambda item: _time_ns(machines[item[0]], plans[item[1]]), asked)
    changed: dict[float, Changes] = {UP: {}, DOWN: {}}
    for ((one, z), name), time_ns in found:
        changes = changed[z].setdefault(one, dict.fromkeys(plans, 0.0))
        longer = _running_ns(short, time_ns()) / alone_ns[name] - 1
        changes[name] = math.log1p(running[name] * longer)
    return Machines(
        plans=plans,
        nominal_ns=nominal_ns,
        families={one: changed[UP][one] for one in FAMILIES if one in changed[UP]},
        other_side=changed[DOWN],
        unknown={one: changed[UP][one] for one, _ in unknown},
        own={name: _own_shares(run, running[name] / alone_ns[name]) for name, run in runs.items()},
    )


def _sides(families: Sequence[Family]) -> list[tuple[Family, float]]:
    """Return what is drawn of families: a standard error more of each, and one less of LAWS."""
    return [(one, UP) for one in families] + [(one, DOWN) for one in families if one in LAWS]


def interval_of(case: Case, chosen: Chosen) -> tuple[float, float]:
    """Return the ends (ns) of the interval of an iteration of a plan."""
    return machines_of(case, {"": chosen}).interval_ns("")


def _running_ns(case: Case, makespan_ns: int) -> int:
    """Return the time in which an iteration's ops run, without its constant; at least 1."""
    return max(1, makespan_ns - case.constant_ns)


def _families(case: Case, run: Played) -> list[Family]:
    """Return the families whose errors may move a plan's time."""
    cost = run.cost
    fit = cost.contention.fit
    played_once = listing_of(run.schedule).played
    found = {family for one in played_once for family in families_of(one.signature)}
    if fit is not None and not cost.contention.is_off:
        found |= {"contention", "contention_of_collectives"}
        if any(one.lane > TP for one in played_once):
            found.add("contention_of_links")
    if cost.launch.mode != "none":
        found.add("launch")
    if case.power is not None:
        found.add("power")
    if cost.cpu.skew or cost.cpu.resume:
        found.add("hosts")
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
