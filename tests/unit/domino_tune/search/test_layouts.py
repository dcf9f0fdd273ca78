"""The search of layouts, on tables of bounds and times: it finds what looking at all plans finds,
and looks at no plan that its bound rules out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domino_tune.search.layouts import (
    FEW_KINDS,
    FOREVER_NS,
    KEPT,
    NEAR,
    TRIED,
    Candidate,
    Found,
    HeldBytes,
    LayoutSearch,
    Least,
    Look,
    Timed,
    fewest,
)
from simulator.bounds import Bounds
from simulator.plan import MEGATRON, SlicePlan

Row = tuple[int, Found]
"""A plan's bound, and what timing it gives."""
CASE: Any = SimpleNamespace(
    cluster=SimpleNamespace(levels="tp 2"), workload=SimpleNamespace(recompute="none")
)
UNSLICED = (MEGATRON, replace(MEGATRON, sequence_parallel=True))
SLICED = tuple(SlicePlan(row_slices=rows) for rows in range(2, 5))
RIVALS = tuple(replace(UNSLICED[1], strategy=name) for name in ("async-tp", "fused"))
PLANS = (*SLICED, *UNSLICED)
HAIR = Found(None, HeldBytes(7, 0))
LEAST = dict.fromkeys((False, True), Least())


class Told(Candidate):
    """A candidate of a table; ``asked`` is called before one of its plans is timed."""

    rows: dict[SlicePlan, Row]
    asked: Callable[[Told, SlicePlan], None]

    def time(self, plan: SlicePlan) -> Found:
        assert plan not in self.timed
        self.asked(self, plan)
        return self.rows[plan][1]

    @property
    def unsure_bound_ns(self) -> int:
        return min(self.rows[plan][0] for plan in self.unsure or self.plans)

    def time_unsure(self) -> Timed | None:
        found = [self.rows[plan] for plan in self.unsure or self.plans]
        ends_ns = [end.timed.iteration_ns if end.timed else ns for ns, end in found]
        return Timed(MEGATRON, min(ends_ns), 1)


def told(
    rows: dict[SlicePlan, Row], *, layers: object = None,
    asked: Callable[[Told, SlicePlan], None] = lambda one, plan: None,
) -> Told:  # fmt: skip
    """Return a candidate of these rows."""
    layers_: Any = layers
    sliced = [plan for plan in SLICED if plan in rows]
    unsliced = [plan for plan in UNSLICED if plan in rows]
    rivals = [plan for plan in RIVALS if plan in rows]
    one = Told(
        case=CASE, sliced=sliced, unsliced=unsliced, rivals=rivals, layers=layers_, least=LEAST
    )
    one.rows, one.asked = rows, asked
    bounds_ns = {plan: rows[plan][0] for plan in one.plans}
    one.bounds_ns = dict(sorted(bounds_ns.items(), key=lambda item: item[1]))
    one.floor_ns = min(bounds_ns.values()) - len(sliced)
    return one


def timed(plan: SlicePlan, iteration_ns: int) -> Found:
    return Found(Timed(plan, iteration_ns, 1))


def drawn(rng: random.Random) -> dict[SlicePlan, Row]:
    """Return rows of a random layout; most plans fit, some by a hair, some not, many tie."""
    rows: dict[SlicePlan, Row] = {}
    plans = *rng.sample(SLICED, rng.randrange(4)), *rng.sample(UNSLICED, rng.randint(1, 2))
    for plan in (*plans, *rng.sample(RIVALS, rng.randrange(3))):
        bound_ns = rng.randint(10, 40)
        end_ns = bound_ns + rng.choice((0, 0, 1, 3, 10))
        ends = timed(plan, end_ns), timed(plan, end_ns), HAIR, Found()
        rows[plan] = bound_ns, rng.choice(ends)
    return rows


def best_ns(one: Told, plans: Sequence[SlicePlan]) -> int:
    """Return the time of the fastest of ``plans``, by the table."""
    ends = [one.rows[plan][1].timed for plan in plans]
    return min((end.iteration_ns for end in ends if end), default=FOREVER_NS)


class Watch:
    """Asserts of each plan that is timed that it may be one of the answer, by what is known."""

    def __init__(self, candidates: list[Told]) -> None:
        self.candidates = candidates
        self.order: list[tuple[int, SlicePlan]] = []
        for one in candidates:
            one.asked = self.asked

    def asked(self, one: Told, plan: SlicePlan) -> None:
        bound_ns = one.rows[plan][0]
        known_ns = sorted(other.best_ns() for other in self.candidates)
        last_ns = known_ns[KEPT - 1] if len(known_ns) >= KEPT else FOREVER_NS
        others_ns = min(other.best_ns(other.others) for other in self.candidates)
        is_kept, is_first = one.best_ns() <= last_ns, one.best_ns() == known_ns[0]
        assert (
            bound_ns <= min(last_ns, one.best_ns())
            or (plan in one.others and bound_ns <= others_ns)
            or (plan in one.unsliced and is_kept and bound_ns <= one.best_ns(one.unsliced))
            or (plan in one.own and is_first and bound_ns <= one.best_ns(one.own))
        )
        self.order.append((self.candidates.index(one), plan))


@pytest.mark.parametrize("seed", range(40))
def test_the_answer_is_that_of_looking_at_every_plan(seed: int) -> None:
    rng = random.Random(seed)
    number = rng.choice((1, 3, KEPT, 25))
    kinds = rng.choice((1, 2 * FEW_KINDS))
    candidates = [
        told(drawn(rng), layers=kind)
        for kind in (object() for _ in range(kinds))
        for _ in range(-(-number // kinds))
    ]
    watch = Watch(candidates)
    search = LayoutSearch(candidates)
    search.run()
    every_ns = sorted(best_ns(one, one.plans) for one in candidates)
    shown_ns = [end_ns for end_ns in every_ns if end_ns < FOREVER_NS][:KEPT]
    assert [one.best_ns() for one in search.kept()] == shown_ns
    others_ns = min(best_ns(one, one.others) for one in candidates)
    found = search.best_unsliced()
    assert (found is None) == (others_ns == FOREVER_NS)
    assert found is None or found.best_ns(found.others) == others_ns
    for number, one in enumerate(search.kept()):
        assert isinstance(one, Told)
        assert one.best_ns(one.unsliced) == best_ns(one, one.unsliced)
        assert number or one.best_ns(one.own) == best_ns(one, one.own)
    assert search.evaluations == len(watch.order)
    for one in candidates:
        unsure = [plan for plan in one.timed if one.rows[plan][1] is HAIR]
        assert one.unsure == dict.fromkeys(unsure, HAIR.unsure)


@pytest.mark.parametrize("seed", range(5))
def test_a_search_goes_on_where_it_was_stopped(seed: int) -> None:
    def searched(stop: Iterator[bool]) -> list[tuple[int, SlicePlan]]:
        rng = random.Random(seed)
        candidates = [told(drawn(rng)) for _ in range(2 * KEPT)]
        watch = Watch(candidates)

        def pause() -> None:
            if next(stop):
                raise InterruptedError

        while True:
            try:
                LayoutSearch(candidates, pause=pause).run()
            except InterruptedError:
                continue
            return watch.order

    assert searched(iter(lambda: False, True)) == searched(n % 3 == 2 for n in count())


def of_time(bound_ns: int, end_ns: int) -> Told:
    return told({MEGATRON: (bound_ns, timed(MEGATRON, end_ns))})


def test_at_most_so_many_plans_are_left() -> None:
    """Unknown before KEPT layouts are; then those whose bounds do not exceed the slowest kept."""
    candidates = [of_time(ns, ns + 20) for ns in range(1, KEPT + 1)]
    bounds_ns = (KEPT + 19, KEPT + 20, KEPT + 21)
    beyond = [told({MEGATRON: (ns, Found()), SLICED[0]: (ns, Found())}) for ns in bounds_ns]
    left: list[int | None] = []
    lines: list[str] = []
    every = [*candidates, *beyond]
    search = LayoutSearch(every, lines.append, pause=lambda: left.append(search.left))
    search.run()
    assert left == [*[None] * (KEPT - 1), 4, 3, 2, 1, 0]
    assert ["at most" in line for line in lines[-6:]] == [False, *[True] * 5]
    assert [len(one.timed) for one in beyond] == [2, 2, 0]


def in_copies(
    function: Callable[[Any], Any], items: Iterable[Any]
) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """Give each item with a result from elsewhere: bounds of 2 ns, and plans that do not fit."""
    for item in items:
        found = Found() if isinstance(item, Look) else [(1, [(0, 2)])] * 2
        yield item, partial(lambda result: result, found)


@pytest.mark.parametrize(("kinds", "is_here"), [(4, True), (5, False)])
def test_bounds_of_many_kinds_of_layers_are_computed_ahead(
    kinds: int, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bounds, "__init__", lambda *_: None)
    monkeypatch.setattr(Bounds, "any_order_ns", lambda _, plans: [1 for _ in plans])
    monkeypatch.setattr(Bounds, "floors_ns", lambda _, plans: [1 for _ in plans])
    candidates = [of_time(ns, ns) for ns in range(3, 3 + 2 * kinds)]
    for number, one in enumerate(candidates):
        one.layers = ("a", "b", "c", "d", "e", "f")[number // 2]  # type: ignore[assignment]
        del one.bounds_ns, one.floor_ns
    lines: list[str] = []
    search = LayoutSearch(candidates[:-1], lines.append, in_copies, edge=candidates[-1:])
    search.run()
    assert {one.bounds_ns[MEGATRON] for one in candidates} == {1 if is_here else 2}
    of_bounds = [f"bounds of {done} of {2 * kinds} layouts" for done in range(0, 2 * kinds, 2)]
    assert lines[:kinds] == of_bounds


def test_bounds_of_layouts_that_are_far_wait_until_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One is bounded where its floor is not above the time of the last layout kept."""
    monkeypatch.setattr(Bounds, "__init__", lambda self, case, layers: setattr(self, "ns", layers))
    monkeypatch.setattr(Bounds, "any_order_ns", lambda self, plans: [self.ns for _ in plans])
    monkeypatch.setattr(Bounds, "floors_ns", lambda self, plans: [self.ns for _ in plans])
    floors_ns = [100, *(round(100 * NEAR) + ns for ns in range(1, KEPT + 3))]
    candidates = []
    for ns in floors_ns:
        candidates.append(one := of_time(ns, ns))
        one.layers = ns  # type: ignore[assignment]
        del one.bounds_ns, one.floor_ns
    search = LayoutSearch(candidates)
    search._bound(candidates)
    assert [one.is_bounded for one in candidates] == [True] + [False] * (KEPT + 2)
    search.run()
    assert search.kept() == candidates[:KEPT]
    assert [one.is_bounded for one in candidates] == [True] * KEPT + [False] * 3


def test_layouts_that_may_be_faster_but_fit_by_a_hair() -> None:
    """Those with lower bounds than the best, by the plans that nearly fit, or all of a layout that
    was left out; those that turn out to be faster, fastest first."""
    best = of_time(20, 20)
    hair = told({MEGATRON: (15, HAIR), SLICED[0]: (12, Found())})
    close = told({MEGATRON: (20, HAIR), SLICED[0]: (3, Found())})
    edge = [of_time(14, 14), of_time(13, 20), of_time(20, 20), of_time(21, 21)]
    search = LayoutSearch([of_time(30, 30), best, hair, close], edge=edge)
    search.run()
    found = [(one, end.iteration_ns) for one, end in search.unsure()]
    assert found == [(edge[0], 14), (hair, 15)]
    many = [of_time(ns, ns) for ns in range(19, 0, -1)]
    found = [(one, end.iteration_ns) for one, end in LayoutSearch([], edge=many).unsure()]
    assert found == [(many[-ns], ns) for ns in range(1, KEPT + 1)]


def memory(sure: int, usable: int) -> Any:
    held = SimpleNamespace(sure_bytes=sure, usable_bytes=usable)
    return SimpleNamespace(memory=held, workload=SimpleNamespace(recompute="none"))


@given(st.integers(0, 5), st.lists(st.integers(1, 9), max_size=12), st.integers(0, 120))
def test_the_fewest_recomputed_layers_that_fit(
    low: int, saved: list[int], limit_bytes: int
) -> None:
    """Each layer saves something; where nothing fits, all are computed again."""
    bytes_of = [sum(saved[layers:]) + 10 for layers in range(len(saved) + 1)]
    again = range(low, low + len(bytes_of))
    fit = [layers for layers in again if bytes_of[layers - low] <= limit_bytes]
    asked = fewest(again, lambda layers: bytes_of[layers - low], limit_bytes)
    assert asked == min(fit, default=again[-1])


@pytest.mark.parametrize(
    ("peak", "least", "fate"),
    [(70, 0, "timed"), (71, 0, "unsure"), (90, 0, "unsure"), (91, 0, ""), (70, 90, "timed"),
     (70, 91, "")],
)  # fmt: skip
def test_a_plan_is_timed_where_it_surely_fits(
    monkeypatch: pytest.MonkeyPatch, peak: int, least: int, fate: str
) -> None:
    """With 70 bytes it surely does, with 90 perhaps; a bound of more says so before its order."""
    places = "domino_tune.search.layouts."
    monkeypatch.setattr(f"{places}order_of", lambda case, plan: ())
    monkeypatch.setattr(f"{places}peak_bytes", lambda case, plan, order=(): peak)
    monkeypatch.setattr(f"{places}iteration_ns", lambda *case: 5)
    bounds, layers = {False: Least(least), True: Least(least + 1)}, cast(Any, None)
    one = Candidate(case=memory(70, 90), sliced=(), unsliced=UNSLICED, layers=layers, least=bounds)
    ends = {"timed": Found(Timed(MEGATRON, 5, peak)), "unsure": Found(None, HeldBytes(peak, 0))}
    assert one.time(MEGATRON) == ends.get(fate, Found())


def test_a_layout_that_fits_by_a_hair_is_timed_by_its_first_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that nearly fitted, or all if none was looked at: the TRIED ones of lowest bounds."""
    peaks = dict(zip(PLANS, (90, 91, 89, 90, 90), strict=True))
    ends_ns = dict(zip(PLANS, (9, 1, 8, 7, 2), strict=True))
    places = "domino_tune.search.layouts."
    monkeypatch.setattr(f"{places}order_of", lambda case, plan: ())
    monkeypatch.setattr(f"{places}peak_bytes", lambda case, plan, order: peaks[plan])
    monkeypatch.setattr(f"{places}iteration_ns", lambda case, plan, order: ends_ns[plan])
    nothing: Any = None
    one = Candidate(
        case=memory(70, 90), sliced=SLICED, unsliced=UNSLICED, layers=nothing, least=LEAST
    )
    one.bounds_ns = {plan: number for number, plan in enumerate(PLANS)}
    assert len(PLANS) == TRIED + 1
    assert one.time_unsure() == Timed(PLANS[3], 7, 90)
    one.unsure = {PLANS[0]: HeldBytes(90, 0), PLANS[4]: HeldBytes(88, 0)}
    assert one.time_unsure() == Timed(PLANS[4], 2, 88)
    one.unsure = {PLANS[1]: HeldBytes(91, 0)}
    assert one.time_unsure() is None


@pytest.mark.parametrize(
    ("ends", "fits_not"),
    [({}, False), ({MEGATRON: None}, False), ({MEGATRON: None, SLICED[0]: None}, True),
     ({MEGATRON: None, SLICED[0]: Timed(SLICED[0], 3, 1)}, False)],
    ids=["nothing is known", "one does not", "both do not", "one does"],
)  # fmt: skip
def test_a_layout_fits_not_once_no_plan_does(
    ends: dict[SlicePlan, Timed | None], fits_not: bool
) -> None:
    one = told({MEGATRON: (1, Found()), SLICED[0]: (1, Found())})
    one.timed = ends
    assert one.fits_not is fits_not
