"""Search of layouts: the best plan of each, in order of their bounds, and the best layouts of all.

All candidates train the same global batch on the same number of GPUs, so the shortest iteration is
the best. A candidate is evaluated only while its bound beats the slowest layout kept, and its plans
only while their bounds beat the candidate's best. So the layouts that are kept are proven to be the
fastest among all candidates and plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import chain, takewhile
from typing import Final, NamedTuple

from domino_tune.base.cores import Ahead, in_turn
from domino_tune.base.progress import Progress, SearchPace, no_progress
from domino_tune.search.problem import go_on
from simulator.bounds import Bounds
from simulator.case import Case
from simulator.greedy import order_of
from simulator.issue_order import LayerOrder
from simulator.memory import peak_bytes
from simulator.overlap import EP_OVERLAP
from simulator.plan import SlicePlan
from simulator.predict import iteration_ns
from simulator.ranks import Layers
from simulator.specs import Recompute, Workload

KEPT: Final = 10
"""Number of layouts in an answer."""
TRIED: Final = 4
"""Plans to time of a layout that is shown without being recommended."""
FOREVER_NS: Final = 1 << 62
NO_CHOICE: Final = range(1)
"""``Candidate.again`` of a layout that recomputes what its case says."""


class HeldBytes(NamedTuple):
    """The bytes of a plan's fullest rank with ``again`` recomputed layers a virtual stage."""

    peak_bytes: int
    again: int


class Least(NamedTuple):
    """Lower bounds of all plans that divide activations alike: their bytes with the most recomputed
    layers, and the fewest layers to recompute with which they are sure to fit, and may fit. Where a
    layout has no plan that is sure to fit, both are the latter.
    """

    held_bytes: int = 0
    sure: int = 0
    usable: int = 0


class Timed(NamedTuple):
    """A plan with ``again`` recomputed layers a virtual stage, its time, and its fullest rank's
    bytes."""

    plan: SlicePlan
    iteration_ns: int
    peak_bytes: int
    again: int = 0


class Look(NamedTuple):
    """A plan of a candidate (by number) that may be worth simulating, and its bound (ns)."""

    number: int
    plan: SlicePlan
    bound_ns: int


class Found(NamedTuple):
    """A plan's time, if it can be recommended, and what it holds where it fits with less chance."""

    timed: Timed | None = None
    unsure: HeldBytes | None = None


def recomputing(case: Case, choices: range, again: int) -> Case:
    """Return ``case`` with ``again`` recomputed layers a virtual stage, of ``choices``, the last of
    which is all layers; NO_CHOICE leaves it as it is.
    """
    work = recomputed(case.workload, choices, again)
    return case if work is case.workload else case.training(work)


def recomputed(work: Workload, choices: range, again: int) -> Workload:
    """Return ``work`` with recomputed layers, as ``recomputing`` does."""
    if choices == NO_CHOICE:
        return work
    layers = again if again < choices[-1] else 0
    kind: Recompute = "full" if again else "none"
    if (work.recompute, work.recompute_layers) == (kind, layers):
        return work
    return _with_layers(work, kind, layers)


@lru_cache(maxsize=4096)  # layouts that divide experts differently have the same few
def _with_layers(work: Workload, kind: Recompute, layers: int) -> Workload:
    return replace(work, recompute=kind, recompute_layers=layers, recompute_modules=())


def fewest(again: range, bytes_of: Callable[[int], int], limit_bytes: int) -> int:
    """Return the fewest recomputed layers of ``again`` whose bytes keep the limit; the last where
    none do. Each layer saves about as much, so the place is found by interpolation.
    """
    low, high = again[0], again[-1]
    if bytes_of(low) <= limit_bytes:
        return low
    while high - low > 1 and bytes_of(high) <= limit_bytes:
        over, saved = bytes_of(low) - limit_bytes, bytes_of(low) - bytes_of(high)
        guess = min(max(low + -(-over * (high - low) // saved), low + 1), high - 1)
        low, high = (low, guess) if bytes_of(guess) <= limit_bytes else (guess, high)
    return high


@dataclass(kw_only=True, eq=False)
class Candidate:
    """A layout as a case, with the plans that slice it, those that do not, and those of rivals; the
    case recomputes the fewest layers with which any of them can be recommended.

    A plan is timed with the fewest recomputed layers with which it can be recommended, of the
    numbers ``again`` (of a virtual stage). ``layers``: what its bounds share with those of other
    layouts. ``least``: of the memory of plans without and with sequence parallelism.
    ``timed``: results in order of evaluation, None if a plan is not recommended because of its
    memory. ``unsure``: what plans hold that fit with less chance.
    """

    case: Case
    again: range = NO_CHOICE
    sliced: Sequence[SlicePlan]
    unsliced: Sequence[SlicePlan]
    rivals: Sequence[SlicePlan] = ()
    layers: Layers
    least: Mapping[bool, Least]
    timed: dict[SlicePlan, Timed | None] = field(default_factory=dict)
    unsure: dict[SlicePlan, HeldBytes] = field(default_factory=dict)
    _orders: dict[tuple[SlicePlan, Recompute], LayerOrder] = field(default_factory=dict)
    _peaks: dict[tuple[SlicePlan, int], int] = field(default_factory=dict)

    def recomputing(self, again: int) -> Case:
        """Return the case with ``again`` recomputed layers a virtual stage."""
        return recomputing(self.case, self.again, again)

    @cached_property
    def plans(self) -> tuple[SlicePlan, ...]:
        """All plans."""
        return (*self.own, *self.rivals)

    @cached_property
    def own(self) -> tuple[SlicePlan, ...]:
        """The plans that slice the layout or leave it whole."""
        return (*self.sliced, *self.unsliced)

    @cached_property
    def others(self) -> tuple[SlicePlan, ...]:
        """The plans without slices: Megatron-LM's and rivals'."""
        return (*self.unsliced, *self.rivals)

    @cached_property
    def floor_ns(self) -> int:
        """A proven lower bound of all plans that can be recommended, for less than theirs."""
        return min(min(bounds.floors_ns(plans)) for bounds, plans in self._alike)

    @cached_property
    def bounds_ns(self) -> dict[SlicePlan, int]:
        """The proven lower bound of each plan that can be recommended, lowest first."""
        found = (
            zip(plans, map(max, bounds.any_order_ns(plans), bounds.floors_ns(plans)), strict=True)
            for bounds, plans in self._alike
        )
        known = dict(sorted(chain.from_iterable(found), key=lambda item: item[1]))
        self.forget()
        return known

    def numbered_bounds(self, limit_ns: float) -> list[tuple[int, int]]:
        """Return ``bounds_ns`` with the places of plans, which another process has, too; nothing if
        the floor is above the limit."""
        if self.floor_ns > limit_ns:
            return []
        return [(self.plans.index(plan), bound_ns) for plan, bound_ns in self.bounds_ns.items()]

    def forget(self) -> None:
        """Forget what only ``bounds_ns`` needs beside ``floor_ns``."""
        vars(self).pop("_alike", None)

    @property
    def unsure_bound_ns(self) -> int:
        """A proven lower bound of the plans that fit with less chance than is recommended."""
        if not self.unsure:
            return min(self.bounds_ns.values())
        return min(
            Bounds(self.recomputing(held.again), self.layers).any_order_ns([plan])[0]
            for plan, held in self.unsure.items()
        )

    @property
    def is_bounded(self) -> bool:
        """Whether ``bounds_ns`` is known."""
        return "bounds_ns" in vars(self)

    @cached_property
    def _alike(self) -> list[tuple[Bounds, tuple[SlicePlan, ...]]]:
        """Bounds, and the plans that are recommended with no fewer recomputed layers."""
        alike: dict[int, list[SlicePlan]] = {}
        for plan in self.plans:
            alike.setdefault(self.least[plan.sequence_parallel].sure, []).append(plan)
        return [
            (Bounds(self.recomputing(again), self.layers), tuple(plans))
            for again, plans in alike.items()
        ]

    def within(self, limit_ns: int) -> Iterator[SlicePlan]:
        """Yield the plans whose bounds do not exceed the limit; by the floor where no bounds are
        known."""
        known = self.is_bounded
        bounds_ns = self.bounds_ns if known else dict.fromkeys(self.plans, self.floor_ns)
        for plan, bound_ns in bounds_ns.items():
            if bound_ns > limit_ns:
                return
            yield plan

    def best(self, plans: Iterable[SlicePlan] | None = None) -> Timed | None:
        """Return the fastest of the evaluated ``plans``, or of all."""
        if not self.timed:
            return None
        found = (self.timed.get(plan) for plan in (self.timed if plans is None else plans))
        fits = [one for one in found if one is not None]
        return min(fits, key=lambda one: one.iteration_ns, default=None)

    def best_ns(self, plans: Iterable[SlicePlan] | None = None) -> int:
        """Return the time of ``best``, or FOREVER_NS if nothing fits."""
        found = self.best(plans)
        return found.iteration_ns if found else FOREVER_NS

    @property
    def fits_not(self) -> bool:
        """Whether every plan was evaluated and none is recommended."""
        return len(self.timed) == len(self.plans) and self.best() is None

    def time(self, plan: SlicePlan) -> Found:
        """Return time and memory of ``plan``, as far as it fits."""
        memory, least = self.case.memory, self.least[plan.sequence_parallel]
        if least.held_bytes > memory.usable_bytes:
            return Found()
        fits = self._fewest(plan, memory.sure_bytes, least.sure)
        unsure = self._fewest(plan, memory.usable_bytes, least.usable)
        return Found(
            self._timed(plan, fits) if fits.peak_bytes <= memory.sure_bytes else None,
            unsure if memory.sure_bytes < unsure.peak_bytes <= memory.usable_bytes else None,
        )

    def _fewest(self, plan: SlicePlan, limit_bytes: int, least: int) -> HeldBytes:
        """Return what ``plan`` holds with the fewest recomputed layers that keep the limit, which
        are not below ``least``; EP overlap recomputes none."""
        choices = self.again[:1]
        if plan.strategy != EP_OVERLAP:
            choices = self.again[self.again.index(least) :]
        again = fewest(choices, lambda again: self._peak_bytes(plan, again), limit_bytes)
        return HeldBytes(self._peak_bytes(plan, again), again)

    def _peak_bytes(self, plan: SlicePlan, again: int) -> int:
        key = plan, again
        if key not in self._peaks:
            case = self.recomputing(again)
            self._peaks[key] = peak_bytes(case, plan, self._order(plan, again))
        return self._peaks[key]

    def _timed(self, plan: SlicePlan, held: HeldBytes) -> Timed:
        case, order = self.recomputing(held.again), self._order(plan, held.again)
        return Timed(plan, iteration_ns(case, plan, order), *held)

    def _order(self, plan: SlicePlan, again: int) -> LayerOrder:
        """Return the order of ``plan``, which is the same for any number of recomputed layers."""
        case = self.recomputing(again)
        key = plan, case.workload.recompute
        if key not in self._orders:
            self._orders[key] = order_of(case, plan)
        return self._orders[key]

    def time_unsure(self) -> Timed | None:
        """Return the fastest plan among the TRIED ones with the lowest bounds that fit with less
        chance than is recommended; if no plan was evaluated, among all plans. Return None if none
        fits.
        """
        asked = [plan for plan in self.bounds_ns if plan in (self.unsure or self.plans)]
        usable = self.case.memory.usable_bytes
        held = (
            self.unsure.get(plan)
            or self._fewest(plan, usable, self.least[plan.sequence_parallel].usable)
            for plan in asked[:TRIED]
        )
        timed = (
            self._timed(plan, one)
            for plan, one in zip(asked, held, strict=False)
            if one.peak_bytes <= usable
        )
        return min(timed, key=lambda one: one.iteration_ns, default=None)


Plans = Callable[[Candidate], Sequence[SlicePlan]]


NEAR: Final = 1.25
"""Bounds of layouts whose floors are this many times the least one are hardly ever asked for."""
FEW_KINDS: Final = 4
"""For up to this many kinds of layers, one core computes bounds sooner than this process forks."""


class LayoutSearch:
    """The candidates, and the results so far. ``evaluations``: plans that were timed or do not fit.
    ``edge``: candidates without any plan that can be recommended, for ``unsure``.

    ``progress`` and then ``pause`` are called after each evaluation. If either raises an exception,
    the search ends; another search of the same candidates continues from their results, and
    evaluates the same plans in the same order as if it had never been interrupted.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        progress: Progress = no_progress,
        ahead: Ahead = in_turn,
        *,
        edge: Sequence[Candidate] = (),
        pause: Callable[[], None] = go_on,
    ) -> None:
        self.candidates, self._edge = candidates, edge
        self._progress = progress
        self._ahead = ahead
        self._pause = pause
        self._pace = SearchPace()
        timed = [(number, one) for number, one in enumerate(candidates) if one.timed]
        self._best_ns = {number: one.best_ns() for number, one in timed}
        self._unsliced_ns = min((one.best_ns(one.others) for _, one in timed), default=FOREVER_NS)
        self._by_floor: list[tuple[int, int]] = []

    def run(self) -> None:
        """Find the KEPT best layouts, and the best without slices; then time each kept layout
        unsliced, and find the best cut of the first.
        """
        numbers = range(len(self.candidates))
        self._bound([*self.candidates, *self._edge])
        self._by_floor = sorted((self.candidates[one].floor_ns, one) for one in numbers)
        self._search(numbers, lambda one: one.plans, self._last_kept_ns)
        self._search(numbers, lambda one: one.others, lambda: self._unsliced_ns)
        kept = [self.candidates.index(one) for one in self.kept()]
        self._search(kept, lambda one: one.unsliced, lambda: FOREVER_NS)
        self._search(kept[:1], lambda one: one.own, lambda: FOREVER_NS)

    def _search(self, numbers: Iterable[int], plans_of: Plans, limit_ns: Callable[[], int]) -> None:
        """Time the plans that may beat both the limit and the best of their candidate's plans so
        far.
        """

        def useful(look: Look) -> bool:
            one = self.candidates[look.number]
            return look.bound_ns <= min(limit_ns(), one.best_ns(plans_of(one)))

        looks = (look for look in self._looks(numbers, plans_of, limit_ns) if useful(look))
        for look, timed in self._ahead(self._time, looks):
            if useful(look):  # check again with the results since it was taken ahead
                self._record(look, timed())

    def _time(self, look: Look) -> Found:
        return self.candidates[look.number].time(look.plan)

    def _record(self, look: Look, found: Found) -> None:
        one = self.candidates[look.number]
        if found.unsure:
            one.unsure[look.plan] = found.unsure
        one.timed[look.plan] = found.timed
        self._best_ns[look.number] = one.best_ns()
        self._unsliced_ns = min(self._unsliced_ns, one.best_ns(one.others))
        left = self.left if self._pace.recounts else None
        words = self._pace.step(self.evaluations, left)
        self._progress(f"{words}; {one.case.cluster.levels}: {look.plan.label}")
        self._pause()

    def _looks(
        self, numbers: Iterable[int], plans_of: Plans, limit_ns: Callable[[], int]
    ) -> Iterator[Look]:
        """Yield the plans that were not timed, by the bounds of their candidates and then by their
        own, up to the limit.
        """
        asking = [number for number in numbers if plans_of(self.candidates[number])]
        far = sorted(((self.candidates[one].floor_ns, one) for one in asking), reverse=True)
        near: list[tuple[int, int, list[Look]]] = []
        while far or near:
            bound_ns = near[0][0] if near else FOREVER_NS
            if far and far[-1][0] <= min(bound_ns, limit_ns()):
                _, number = far.pop()
                asked = set(plans_of(one := self.candidates[number]))
                looks = [Look(number, *item) for item in one.bounds_ns.items() if item[0] in asked]
                heappush(near, (looks[0].bound_ns, number, looks))
                continue
            if bound_ns > limit_ns():
                return
            _, number, looks = heappop(near)
            yield from (one for one in looks if one.plan not in self.candidates[number].timed)

    def _bound(self, candidates: Iterable[Candidate]) -> None:
        """Compute the missing floors, and the bounds of candidates whose floors are not above NEAR
        times the least one so far: others wait until they are asked for. Group candidates with the
        same layers, which share parts of both; the largest groups first, so that cores end
        together.
        """
        alike: dict[int, list[Candidate]] = {}
        least_ns = FOREVER_NS
        for one in candidates:
            if one.is_bounded:
                least_ns = min(least_ns, one.floor_ns)
            else:
                alike.setdefault(id(one.layers), []).append(one)
        groups, done = sorted(alike.values(), key=len, reverse=True), 0

        def asked() -> Iterator[tuple[int, int]]:
            for number in range(len(groups)):
                yield number, least_ns

        def bounded(item: tuple[int, int]) -> list[tuple[int, list[tuple[int, int]]]]:
            number, least_ns = item
            group = groups[number]
            limit_ns = NEAR * min(least_ns, *(one.floor_ns for one in group))
            found = [(one.floor_ns, one.numbered_bounds(limit_ns)) for one in group]
            for one in group:
                one.forget()
            return found

        ahead = self._ahead if len(groups) > FEW_KINDS else in_turn
        for (number, _), bounds in ahead(bounded, asked()):
            self._progress(f"bounds of {done:,} of {sum(map(len, groups)):,} layouts")
            for one, (floor_ns, bounds_ns) in zip(groups[number], bounds(), strict=True):
                one.floor_ns, least_ns = floor_ns, min(least_ns, floor_ns)
                if bounds_ns:
                    one.bounds_ns = {one.plans[place]: bound_ns for place, bound_ns in bounds_ns}
            done += len(groups[number])

    def _last_kept_ns(self) -> int:
        """Return the time of the slowest layout kept so far; FOREVER_NS while fewer than KEPT are
        known.
        """
        return [*sorted(self._best_ns.values()), *[FOREVER_NS] * KEPT][KEPT - 1]

    def kept(self) -> list[Candidate]:
        """Return the best candidates, fastest first."""
        fits = [one for one in self.candidates if one.best() is not None]
        return sorted(fits, key=Candidate.best_ns)[:KEPT]

    @property
    def first(self) -> Candidate | None:
        """The best candidate of those with a plan of their own that was timed."""
        return next((one for one in self.kept() if one.best(one.own)), None)

    def best_unsliced(self) -> Candidate | None:
        """Return the candidate that is fastest without slices, or None."""
        found = min(self.candidates, key=lambda one: one.best_ns(one.others), default=None)
        return found if found and found.best(found.others) else None

    def unsure(self) -> list[tuple[Candidate, Timed]]:
        """Return layouts that are faster than the best one but fit with less chance than is
        recommended, fastest first: of those that the search has come across, and of ``edge``.
        """
        kept = self.kept()
        limit_ns = kept[0].best_ns() if kept else FOREVER_NS
        near = [one for one in self.candidates if one.unsure]
        near += [one for one in self._edge if one.floor_ns < limit_ns]
        bounds_ns = sorted((one.unsure_bound_ns, number) for number, one in enumerate(near))
        near = [near[number] for bound_ns, number in bounds_ns[:KEPT] if bound_ns < limit_ns]
        timed = [(one, found) for one in near if (found := one.time_unsure())]
        faster = [(one, found) for one, found in timed if found.iteration_ns < limit_ns]
        return sorted(faster, key=lambda pair: pair[1].iteration_ns)

    @property
    def evaluations(self) -> int:
        """Number of plans that were simulated."""
        return sum(len(self.candidates[number].timed) for number in self._best_ns)

    @property
    def left(self) -> int | None:
        """Return how many plans may still be simulated at most, by the best known bounds; None
        before all are bounded and KEPT layouts are found."""
        limit_ns = self._last_kept_ns()
        if limit_ns == FOREVER_NS or not self._by_floor:
            return None
        near = takewhile(lambda one: one[0] <= limit_ns, self._by_floor)
        return sum(
            plan not in self.candidates[number].timed
            for _, number in near
            for plan in self.candidates[number].within(
                min(limit_ns, self._best_ns.get(number, FOREVER_NS))
            )
        )
