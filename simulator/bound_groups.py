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
    """Rows grouped by kind. ``first``: the index of a row of each kind; ``kind``: the kind of each
    row."""

    first: Ints
    kind: Ints


class BoundGroups(NamedTuple):
    """Groups of ``plans`` that share a bound: of the forward pass, of the backward pass, and of the
    ops outside the layers."""

    plans: Sequence[SlicePlan]
    forward: Group
    backward: Group
    edges: Group


def coded(*columns: Ints) -> Group:
    """Return the groups of rows that are equal in all ``columns``, whose numbers are ≥ 0."""
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
