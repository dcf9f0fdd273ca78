"""Scores: how far predictions are from measurements, and what choosing by them costs.

Pure: times in, numbers out. Every (model, link) is a ``Setting``; its plans are measured twice, in
two launches with equal repetitions, so that the noise of measuring stands beside the error.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from benchmarks.fidelity.settings import ALWAYS_TWO, TUNED

WORTH: Final = 0.05
"""Plans that spread by less than this are all the same: choosing among them costs nothing."""


def within_rounds(times: Sequence[Sequence[float]]) -> list[list[float]]:
    """Log of each plan's time in each round, relative to that round's mean of all plans' logs.

    ``times[plan][round]``; so what slows the machine for a while slows all plans alike.
    """
    rounds = [[math.log(time) for time in together] for together in zip(*times, strict=True)]
    relative = [[log - statistics.fmean(logs) for log in logs] for logs in rounds]
    return [list(logs) for logs in zip(*relative, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One plan of one setting; times in ms. ``first`` and ``second`` are the launches' rounds.

    ``steady_ms`` is the prediction with compute as fast as it was while the plans ran.
    ``emulated``: rounds on one rank whose collectives take what the profile says, and
    ``predicted_emulated_ms`` the prediction of that: no rank to wait for, no core to share.
    """

    plan: str
    label: str
    predicted_ms: float
    steady_ms: float
    first: tuple[float, ...]
    second: tuple[float, ...]
    emulated: tuple[float, ...]
    predicted_emulated_ms: float
    exposed_ms: float
    predicted_exposed_ms: float
    hidden: float

    @property
    def first_ms(self) -> float:
        """Median of the first launch."""
        return statistics.median(self.first)

    @property
    def second_ms(self) -> float:
        """Median of the second launch."""
        return statistics.median(self.second)

    @property
    def emulated_ms(self) -> float:
        """Median on one rank with emulated collectives."""
        return statistics.median(self.emulated)

    @property
    def emulated_error(self) -> float:
        """Of the prediction for that, relative to it."""
        return self.predicted_emulated_ms / self.emulated_ms - 1

    @property
    def error(self) -> float:
        """Of the prediction, relative to the first launch."""
        return self.predicted_ms / self.first_ms - 1

    @property
    def steady_error(self) -> float:
        """The same at the speed that the machine had then."""
        return self.steady_ms / self.first_ms - 1

    @property
    def noise(self) -> float:
        """Of measuring: the second launch relative to the first."""
        return self.second_ms / self.first_ms - 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model on one link. ``speed`` is the machine's while plans ran, relative to profiling."""

    model: str
    link: str
    profile_id: str
    profile_s: float
    speed: float
    cells: tuple[Cell, ...]

    def cell(self, plan: str) -> Cell:
        """The cell of a plan by its name."""
        return next(cell for cell in self.cells if cell.plan == plan)

    @property
    def spread(self) -> float:
        """The slowest plan relative to the fastest, as measured."""
        times = self._standing(0, 1).values()
        return math.exp(max(times) - min(times)) - 1

    def regret(self, plan: str) -> float:
        """What a plan costs beyond the best measured one.

        The best of several noisy times looks better than it is. So one launch picks the best and
        the other says what both take, both ways; where all are alike this can be below 0.
        """
        first, second = self._standing(0), self._standing(1)
        costs = [
            judge[plan] - judge[min(pick, key=pick.__getitem__)]
            for pick, judge in ((first, second), (second, first))
        ]
        return math.exp(statistics.fmean(costs)) - 1

    @property
    def random_regret(self) -> float:
        """What a plan drawn at random costs on average."""
        return statistics.fmean(self.regret(cell.plan) for cell in self.cells)

    @property
    def pair_noise(self) -> float:
        """How much the ratio of two plans' times differs between the two launches."""
        first, second = self._standing(0), self._standing(1)
        return statistics.fmean(
            abs((first[a.plan] - first[b.plan]) - (second[a.plan] - second[b.plan]))
            for a, b in combinations(self.cells, 2)
        )

    def pairs(self) -> Iterator[bool]:
        """For each pair of plans that differ by more than the noise: ordered rightly?"""
        first, second = self._standing(0), self._standing(1)
        noise = self.pair_noise
        for a, b in combinations(self.cells, 2):
            one, two = first[a.plan] - first[b.plan], second[a.plan] - second[b.plan]
            if one * two > 0 and min(abs(one), abs(two)) > noise:
                yield (a.predicted_ms > b.predicted_ms) == (one > 0)

    def _standing(self, *launches: int) -> dict[str, float]:
        """Log of each plan's time relative to the mean of all plans of the same round, median over
        rounds: rounds are short, so that what slows the machine for a while slows all alike."""
        times = [
            [time for launch in launches for time in (cell.first, cell.second)[launch]]
            for cell in self.cells
        ]
        return {
            cell.plan: statistics.median(logs)
            for cell, logs in zip(self.cells, within_rounds(times), strict=True)
        }


@dataclass(frozen=True, kw_only=True)
class Score:
    """All settings together. Errors and noise are means of absolute relative values."""

    cells: int
    error: float
    steady_error: float
    noise: float
    emulated_error: float
    limit: float
    pairs: int
    concordance: float
    tuned_regret: float | None
    two_regret: float | None
    random_regret: float | None

    @property
    def accurate(self) -> bool:
        """Whether the error is within max(3 %, twice the noise)."""
        return self.error <= self.limit


def score(settings: Sequence[Setting]) -> Score:
    """The numbers of a report. Regrets are the worst over settings whose plans differ,
    None where none of them do."""
    cells = [cell for setting in settings for cell in setting.cells]
    noise = statistics.fmean(abs(cell.noise) for cell in cells)
    pairs = [right for setting in settings for right in setting.pairs()]
    worth = [setting for setting in settings if setting.spread > WORTH]
    return Score(
        cells=len(cells),
        error=statistics.fmean(abs(cell.error) for cell in cells),
        steady_error=statistics.fmean(abs(cell.steady_error) for cell in cells),
        noise=noise,
        emulated_error=statistics.fmean(abs(cell.emulated_error) for cell in cells),
        limit=max(0.03, 2 * noise),
        pairs=len(pairs),
        concordance=statistics.fmean(pairs) if pairs else 1.0,
        tuned_regret=max((setting.regret(TUNED) for setting in worth), default=None),
        two_regret=max((setting.regret(ALWAYS_TWO) for setting in worth), default=None),
        random_regret=max((setting.random_regret for setting in worth), default=None),
    )
