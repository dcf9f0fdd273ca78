"""Whose turn it is: plans that are compared follow each other in another order in every round.

In a fixed order each plan would always run behind the same one, in the memory and caches that it
leaves; what that costs or saves would be taken for the plan's own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def turns_of(plans: Sequence[int], round: int) -> list[int]:
    """``plans`` in the order of round ``round``: the same on every rank, drawn anew each round."""
    return random.Random(round).sample(plans, len(plans))


def next_turn(plans: Sequence[int], round: int, plan: int) -> int:
    """Who follows ``plan`` in round ``round``; behind the last one, the next round's first."""
    turns = turns_of(plans, round)
    place = turns.index(plan) + 1
    return turns[place] if place < len(turns) else turns_of(plans, round + 1)[0]
