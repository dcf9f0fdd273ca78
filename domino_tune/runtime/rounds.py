"""The order of plans in a round: it changes from round to round.

In a fixed order each plan would always follow the same one, in the memory and caches that it
leaves. The cost or gain of that would count as the plan's own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def round_order(plans: Sequence[int], round: int) -> list[int]:
    """Return ``plans`` in the order of round ``round``: random, the same on every rank."""
    return random.Random(round).sample(plans, len(plans))


def next_in_round(plans: Sequence[int], round: int, plan: int) -> int:
    """Return the plan after ``plan`` in round ``round``; after the last, the next round's first."""
    order = round_order(plans, round)
    place = order.index(plan) + 1
    return order[place] if place < len(order) else round_order(plans, round + 1)[0]
