"""The law of the time that compute loses after a wait, fitted to steps in which a rank slept.

Each stretch is the compute after one wait. Its law (``simulator.cpu_hosts``) has two unknowns: the
total cost of a wait of that length, and how soon it is paid. For a given recovery the cost is the
least-squares one; the recovery is the one of ``RECOVERIES_US`` with the smallest sum of squares.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from simulator.cpu_hosts import ResumeFit, ResumeRow

RECOVERIES_US: Final = (500.0, 1000.0, 2000.0, 4000.0, 8000.0)
LONGEST_US: Final = 16_000
"""Length of the compute after a wait that counts; later ops have recovered."""
ODD: Final = 0.1
"""Share of stretches dropped at either end, as disturbed."""
LEAST_ERROR: Final = 0.1
"""Lowest relative error of the law: its halves may agree better by chance."""


class Resumption(NamedTuple):
    """An op after a wait: its usual duration, and how much longer it took (µs)."""

    usual_us: float
    extra_us: float


class WaitStretch(NamedTuple):
    """A wait of ``idle_us``, and the ops after it, up to the next wait."""

    idle_us: float
    ops: tuple[Resumption, ...]


def resume_law(stretches: Mapping[float, Sequence[WaitStretch]]) -> ResumeFit:
    """Return the law; ``stretches``: by the nominal length of their wait, oldest first."""
    kept = {pause: _usual(found) for pause, found in sorted(stretches.items()) if found}
    recovery_us = min(
        RECOVERIES_US,
        key=lambda candidate: sum(_fit(found, candidate)[1] for found in kept.values()),
    )
    rows = tuple(
        ResumeRow(
            statistics.median(one.idle_us for one in found), max(0.0, _fit(found, recovery_us)[0])
        )
        for found in kept.values()
    )
    return ResumeFit(
        rows=rows,
        recovery_us=recovery_us,
        error=_error(list(stretches.values()), recovery_us),
        samples=sum(len(found) for found in stretches.values()),
    )


def _error(stretches: Sequence[Sequence[WaitStretch]], recovery_us: float) -> float:
    """Return by what share of the costs two halves of the stretches differ: early and late ones, or
    every other one; the larger of the two.
    """
    splits = (
        [(found[: len(found) // 2], found[len(found) // 2 :]) for found in stretches],
        [(found[::2], found[1::2]) for found in stretches],
    )
    return max(LEAST_ERROR, *(_apart(halves, recovery_us) for halves in splits))


def _apart(
    halves: Sequence[tuple[Sequence[WaitStretch], Sequence[WaitStretch]]], recovery_us: float
) -> float:
    apart = together = 0.0
    for pair in halves:
        first, second = (_fit(_usual(half), recovery_us)[0] for half in pair)
        apart += abs(first - second)
        together += max(0.0, first + second)
    return min(1.0, apart / together) if together else 1.0


def _usual(stretches: Sequence[WaitStretch]) -> Sequence[WaitStretch]:
    """Return the stretches without the slowest and the fastest ``ODD`` share."""
    ordered = sorted(stretches, key=lambda one: sum(op.extra_us for op in one.ops))
    odd = round(len(ordered) * ODD)
    return ordered[odd : len(ordered) - odd]


def _shares(ops: Sequence[Resumption], recovery_us: float) -> Iterator[tuple[float, float]]:
    """Yield for each op its share of the cost of the wait, and how much longer it took, µs."""
    owed, passed_us = 1.0, 0.0
    for op in ops:
        if passed_us > LONGEST_US:
            return
        share = owed * op.usual_us / (op.usual_us + recovery_us)
        yield share, op.extra_us
        owed -= share
        passed_us += op.usual_us


def _fit(stretches: Sequence[WaitStretch], recovery_us: float) -> tuple[float, float]:
    """Return the cost of a wait (µs) that fits best, and the sum of squares that remains."""
    pairs = [pair for one in stretches for pair in _shares(one.ops, recovery_us)]
    squares = sum(share * share for share, _ in pairs)
    cost = sum(share * extra for share, extra in pairs) / squares if squares else 0.0
    return cost, sum((extra - cost * share) ** 2 for share, extra in pairs)
