"""Groups of plans whose passes have the same bound, so that a space's bounds are sums of few.

A space of tens of thousands of plans has some thousand forward passes and as many backward ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.plan import SlicePlan

Ints = npt.NDArray[np.int64]


class Group(NamedTuple):
    """Members of each of some kinds: ``first``, a plan's number for each kind; ``kind``: of each
    plan."""

    first: Ints
    kind: Ints


class BoundGroups(NamedTuple):
    """Groups of ``plans`` by what the bounds of a forward and a backward pass, and of what is
    outside the layers, depend on."""

    plans: Sequence[SlicePlan]
    forward: Group
    backward: Group
    edges: Group


def coded(*columns: Ints) -> Group:
    """Return the groups of rows that have the same numbers, all ≥ 0, in all ``columns``."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes = codes * (int(column.max(initial=0)) + 1) + column
    _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
    return Group(first, kind)


def numbered(values: Sequence[Hashable]) -> Ints:
    """Return a number for each value, equal for equal ones."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def by_key(plans: Sequence[SlicePlan], key: Callable[[SlicePlan], Hashable]) -> Ints:
    """Return a number for each plan, equal where ``key`` is."""
    return numbered([key(plan) for plan in plans])
