"""Ratio: how long a plan takes beside the baseline, from rounds in which both took turns.

The speed of a machine drifts by tens of percent within minutes, so times of different moments do
not compare; the ratio of two steps that followed each other does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.errors import InputError

TRIMMED: Final = 0.2
"""Share of rounds left out at each end: a step that something else disturbed tells nothing."""
LEAST_ROUNDS: Final = 3
LEAST_ERROR: Final = 5e-4
"""Standard error that no number of rounds goes below: clocks, caches, places of buffers."""
SURE: Final = 0.975
"""Two-sided 95 %."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """``log``: mean of log(plan / baseline). ``error``: its standard error, with ``freedom``
    degrees of freedom (0: exact)."""

    log: float
    error: float
    freedom: int

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of ``log`` (Student's t)."""
        if not self.freedom:
            return 0.0
        from scipy.stats import t

        return float(t.ppf(SURE, self.freedom)) * self.error

    @property
    def value(self) -> float:
        """plan / baseline."""
        return math.exp(self.log)

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval of ``value``."""
        return math.exp(self.log - self.half_width)

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval of ``value``."""
        return math.exp(self.log + self.half_width)

    def overlaps(self, other: Ratio) -> bool:
        """Whether the two intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high


BASELINE_RATIO: Final = Ratio(log=0.0, error=0.0, freedom=0)
"""The baseline's own."""


def ratio_of(plan_ns: Sequence[int], baseline_ns: Sequence[int]) -> Ratio:
    """Trimmed mean of log ratios, round by round, and its standard error by winsorized variance
    (Yuen 1974). Raises InputError for fewer rounds than LEAST_ROUNDS, or times not > 0."""
    rounds = min(len(plan_ns), len(baseline_ns))
    if rounds < LEAST_ROUNDS or min(*plan_ns, *baseline_ns) <= 0:
        raise InputError(
            f"A ratio needs {LEAST_ROUNDS} rounds or more of times > 0, got {rounds} rounds."
        )
    logs = np.sort(np.log(np.array(plan_ns[:rounds]) / np.array(baseline_ns[:rounds])))
    cut = int(TRIMMED * rounds)
    kept = logs[cut : rounds - cut]
    winsorized = np.clip(logs, kept[0], kept[-1])
    error = float(np.std(winsorized, ddof=1)) / ((1 - 2 * cut / rounds) * math.sqrt(rounds))
    return Ratio(
        log=float(np.mean(kept)), error=max(error, LEAST_ERROR), freedom=max(1, len(kept) - 1)
    )


def pooled(ratios: Sequence[Ratio]) -> Ratio:
    """One ratio of several of the same plan, each weighed by its certainty."""
    if len(ratios) == 1:
        return ratios[0]
    weights = np.array([1 / ratio.error**2 for ratio in ratios])
    logs = np.array([ratio.log for ratio in ratios])
    return Ratio(
        log=float(weights @ logs / weights.sum()),
        error=float(weights.sum() ** -0.5),
        freedom=sum(ratio.freedom for ratio in ratios),
    )
