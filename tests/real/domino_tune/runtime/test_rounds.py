"""Turns: a round holds every plan once, in an order of its own; all can tell who is next."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from domino_tune.runtime.plan_runs import next_in_round, round_order

PLANS = range(5)


def test_every_round_holds_every_plan_once() -> None:
    assert all(sorted(round_order(PLANS, round)) == list(PLANS) for round in range(-1, 20))


def test_plans_follow_all_others_over_many_rounds() -> None:
    played = [plan for round in range(400) for plan in round_order(PLANS, round)]
    behind = Counter(pairwise(played))
    others = [behind[a, b] for a in PLANS for b in PLANS if a != b]
    assert min(others) > 0.5 * 400 / 5


def test_who_is_next_is_who_plays_next() -> None:
    played = [(round, plan) for round in range(10) for plan in round_order(PLANS, round)]
    told = [next_in_round(PLANS, round, plan) for round, plan in played[:-1]]
    assert told == [plan for _, plan in played[1:]]
