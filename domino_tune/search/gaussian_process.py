"""The Gaussian process of every Bayesian search. It models log(time / expected time) of plans.

Few observations must suffice, so the covariance says how expected times are wrong. Two plans that
react alike to changes of the simulated machine are wrong alike. The rest is smooth in the features,
apart from a small term of each plan's own. The covariance of plans x and x' is
    Σ_j s_j(x)·s_j(x') + scale²·(SMOOTH²·Matérn(x, x') + ROUGH²·[x = x']),
where s_j are the sensitivities of a Pool. Only ``scale`` is fitted, by maximum likelihood: a fitted
LENGTH makes measured searches end too early.

The imports take more than a second, so import this module inside functions.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel, Matern
from skopt.learning import GaussianProcessRegressor
from threadpoolctl import threadpool_limits

from domino_tune.search.space import Floats, Indices, Observations, Pool

SMOOTH: Final = 0.05
ROUGH: Final = 0.01
LENGTH: Final = 1.25
SCALE_BOUNDS: Final = (0.45, 4.0)
LEAST_VARIANCE: Final = 1e-10
"""Added to the variance of each observation: without it, a matrix of exact ones is singular."""


class PlanKernel(Kernel):  # type: ignore[misc]
    """Covariance of plans as [n, k + d] rows: k = ``sensitivities`` columns, then d features."""

    def __init__(self, sensitivities: int, scale: float = 1.0) -> None:
        self.sensitivities = sensitivities
        self.scale = scale

    @property
    def hyperparameter_scale(self) -> Hyperparameter:
        """Return the only hyperparameter."""
        return Hyperparameter("scale", "numeric", SCALE_BOUNDS)

    def __call__(self, X: Floats, Y: Floats | None = None, eval_gradient: bool = False) -> Any:
        """Return [n, m] covariances of the rows of ``X`` and of ``Y`` (default: ``X``).

        With ``eval_gradient`` return also the [n, m, 1] derivatives with respect to log(scale).
        """
        Y = X if Y is None else Y
        explained = X[:, : self.sensitivities] @ Y[:, : self.sensitivities].T
        matern = Matern(LENGTH, nu=2.5)(X[:, self.sensitivities :], Y[:, self.sensitivities :])
        rest = self.scale**2 * (SMOOTH**2 * matern + ROUGH**2 * (matern == 1.0))
        return (explained + rest, 2 * rest[:, :, np.newaxis]) if eval_gradient else explained + rest

    def diag(self, X: Floats) -> Floats:
        """Return the [n] variances of the rows of ``X``."""
        explained = np.square(X[:, : self.sensitivities]).sum(axis=1)
        return np.asarray(explained + self.scale**2 * (SMOOTH**2 + ROUGH**2))

    def is_stationary(self) -> bool:
        """Return False: covariance is not a function of X - Y alone."""
        return False


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Log ns of every plan of a pool after observations: [n] means and [n] standard deviations."""

    mean: Floats
    deviation: Floats

    def predict(self, indices: Indices, return_std: bool = True) -> tuple[Floats, Floats]:
        """Return means and deviations of the plans at ``indices``, for skopt's ``gaussian_ei``."""
        return self.mean[indices], self.deviation[indices]


def posterior_of(pool: Pool, observations: Observations) -> Posterior:
    """Return the posterior of all plans of ``pool`` after one or more observations."""
    observed = np.array(list(observations), dtype=np.intp)
    log_ns, errors = np.array(list(observations.values())).T
    rows = np.hstack([pool.sensitivity, pool.points])
    process = GaussianProcessRegressor(
        PlanKernel(pool.sensitivity.shape[1]), alpha=errors**2 + LEAST_VARIANCE
    )
    with warnings.catch_warnings(), threadpool_limits(1):  # more threads are 7-20 times slower
        warnings.simplefilter("ignore", ConvergenceWarning)  # the best scale may be a bound
        warnings.filterwarnings("ignore", message="Predicted variances smaller than 0")
        process.fit(rows[observed], log_ns - pool.log_prior[observed])
        offset, deviation = process.predict(rows, return_std=True)
    return Posterior(mean=pool.log_prior + offset, deviation=deviation)
