"""Ratio: time of a plan relative to the baseline, from rounds in which both take turns.

The speed of a machine drifts by tens of percent within minutes, so times of different moments are
not comparable. The ratio of two consecutive steps is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.errors import InputError

TRIMMED: Final = 0.2
"""Share of rounds left out at each end: a disturbed step says nothing about a plan."""
LEAST_ROUNDS: Final = 3
LEAST_ERROR: Final = 5e-4
"""Least standard error for any number of rounds: clocks, caches and addresses of buffers vary."""
QUANTILE: Final = 0.975
"""Of a two-sided 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """``log``: mean of log(plan / baseline). ``error``: its standard error.

    ``degrees_of_freedom``: of the error; 0 where the ratio is exact.
    """

    log: float
    error: float
    degrees_of_freedom: int

    @property
    def half_width(self) -> float:
        """Return half of the 95 % interval of ``log`` (Student's t)."""
        if not self.degrees_of_freedom:
            return 0.0
        from scipy.stats import t

        return float(t.ppf(QUANTILE, self.degrees_of_freedom)) * self.error

    @property
    def value(self) -> float:
        """Return plan / baseline."""
        return math.exp(self.log)

    @property
    def low(self) -> float:
        """Return the lower end of the 95 % interval of ``value``."""
        return math.exp(self.log - self.half_width)

    @property
    def high(self) -> float:
        """Return the upper end of the 95 % interval of ``value``."""
        return math.exp(self.log + self.half_width)

    def overlaps(self, other: Ratio) -> bool:
        """Return whether the two intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high


BASELINE_RATIO: Final = Ratio(log=0.0, error=0.0, degrees_of_freedom=0)
"""Ratio of the baseline to itself."""


def ratio_of(plan_ns: Sequence[int], baseline_ns: Sequence[int]) -> Ratio:
    """Return the trimmed mean of log ratios, round by round, with its standard error.

    The error is from the winsorized variance (Yuen 1974). Raise InputError for fewer rounds than
    LEAST_ROUNDS, or times not > 0.
    """
    rounds = min(len(plan_ns), len(baseline_ns))
    if rounds < LEAST_ROUNDS or min(*plan_ns, *baseline_ns) <= 0:
        raise InputError(
            f"A ratio needs {LEAST_ROUNDS} rounds or more of times > 0, got {rounds} rounds."
        )
    logs = np.sort(np.log(np.array(plan_ns[:rounds]) / np.array(baseline_ns[:rounds])))
    cut = int(TRIMMED * rounds)
    middle = logs[cut : rounds - cut]
    winsorized = np.clip(logs, middle[0], middle[-1])
    error = float(np.std(winsorized, ddof=1)) / ((1 - 2 * cut / rounds) * math.sqrt(rounds))
    return Ratio(
        log=float(np.mean(middle)),
        error=max(error, LEAST_ERROR),
        degrees_of_freedom=max(1, len(middle) - 1),
    )


def pooled(ratios: Sequence[Ratio]) -> Ratio:
    """Return one ratio for several of the same plan, each weighted by 1 / error²."""
    if len(ratios) == 1:
        return ratios[0]
    weights = np.array([1 / ratio.error**2 for ratio in ratios])
    logs = np.array([ratio.log for ratio in ratios])
    return Ratio(
        log=float(weights @ logs / weights.sum()),
        error=float(weights.sum() ** -0.5),
        degrees_of_freedom=sum(ratio.degrees_of_freedom for ratio in ratios),
    )
