"""What measurements say about plans not measured yet: a Gaussian process on log(measured /
simulated), both relative to the baseline.

Few measurements must do, so the process is told how simulators are wrong: plans that react alike
when contention or links are changed in the simulation are wrong alike. Its covariance is
    Σ_j s_j(x)·s_j(x') + r²·(s²·Matérn(x, x') + u²·[x = x']),
s_j being the change of log(plan / baseline) under change j. The rest, smooth (s) and rough (u), is
scaled by r, chosen by marginal likelihood: there is no room to fit more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from domino_tune.search.features import Floats
from domino_tune.search.ratios import Ratio
from simulator.plan import SlicePlan

BASELINE: Final = 0
"""Place of the baseline in every pool."""
SMOOTH: Final = 0.05
ROUGH: Final = 0.01
LENGTH: Final = 1.5
SCALES: Final = (0.5, 1.0, 2.0, 4.0)
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MeasuredPool:
    """Plans that may be measured, the first of them the baseline.

    ``points``: [n, d] features. ``log_prior``: [n] log of simulated ns. ``sensitivity``: [n, k]
    change of log(plan / baseline) under each of k changes of the simulated machine.
    """

    plans: tuple[SlicePlan, ...]
    points: Floats
    log_prior: Floats
    sensitivity: Floats

    @property
    def times_ns(self) -> Floats:
        """[n] simulated ns."""
        return np.asarray(np.exp(self.log_prior))

    @property
    def simulated(self) -> Floats:
        """[n] log of simulated plan / baseline."""
        return np.asarray(self.log_prior - self.log_prior[BASELINE])


@dataclass(frozen=True, kw_only=True)
class Belief:
    """[n] expected log(plan / baseline) of every plan of a pool, and its standard deviation."""

    mean: Floats
    spread: Floats


def believe(pool: MeasuredPool, measured: Mapping[int, Ratio]) -> Belief:
    """The belief after ``measured``, by index; the baseline's ratio is known to be 1."""
    seen = np.array(list(measured), dtype=np.intp)
    wrong = np.array([ratio.log for ratio in measured.values()]) - pool.simulated[seen]
    noise = np.array([ratio.error**2 for ratio in measured.values()]) + 1e-10
    linear, rest = _covariances(pool)
    best = max(
        SCALES, key=lambda scale: _log_likelihood(linear + scale**2 * rest, seen, wrong, noise)
    )
    whole = linear + best**2 * rest
    inverse = np.linalg.inv(whole[np.ix_(seen, seen)] + np.diag(noise))
    gain = whole[:, seen] @ inverse
    variance = np.diag(whole) - np.einsum("ij,ij->i", gain, whole[:, seen])
    return Belief(mean=pool.simulated + gain @ wrong, spread=np.sqrt(np.maximum(variance, 1e-12)))


def _covariances(pool: MeasuredPool) -> tuple[Matrix, Matrix]:
    """[n, n] each: what changes of the machine explain, and the rest at scale 1."""
    linear = pool.sensitivity @ pool.sensitivity.T
    squares = (pool.points**2).sum(axis=1)
    distance = squares[:, None] + squares[None, :] - 2 * pool.points @ pool.points.T
    scaled = np.sqrt(5 * np.maximum(distance, 0.0)) / LENGTH
    matern = (1 + scaled + scaled**2 / 3) * np.exp(-scaled)
    return linear, SMOOTH**2 * matern + ROUGH**2 * np.eye(len(pool.plans))


def _log_likelihood(covariance: Matrix, seen: npt.NDArray[np.intp], wrong: Floats,
                    noise: Floats) -> float:  # fmt: skip
    matrix = covariance[np.ix_(seen, seen)] + np.diag(noise)
    _, determinant = np.linalg.slogdet(matrix)
    return float(-0.5 * (wrong @ np.linalg.solve(matrix, wrong) + determinant))
