"""The kernel of plans and the posterior, beside the textbook formulas."""

from __future__ import annotations

import numpy as np
import pytest

from domino_tune.search import by_improvement
from domino_tune.search.space import Floats, Pool, encode
from tests.unit.domino_tune.search.bumpy import space_of

OBSERVED = (0, 7, 20, 33)
ERRORS = np.array([0.0, 1e-3, 2e-3, 5e-2])


@pytest.fixture(scope="module")
def pool() -> Pool:
    drawn = np.random.default_rng(0)
    plans = tuple(space_of()[:40])
    return Pool(
        plans=plans, points=encode(plans), log_prior=20 + drawn.normal(0, 0.1, 40),
        sensitivity=drawn.normal(0, 0.05, (40, 3)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def rows(pool: Pool) -> Floats:
    return np.hstack([pool.sensitivity, pool.points])


def covariance(pool: Pool, scale: float) -> Floats:
    from scipy.spatial.distance import cdist

    from domino_tune.search.gaussian_process import LENGTH, ROUGH, SMOOTH

    distance = np.sqrt(5) * cdist(pool.points, pool.points) / LENGTH
    matern = (1 + distance + distance**2 / 3) * np.exp(-distance)
    rest = SMOOTH**2 * matern + ROUGH**2 * np.eye(len(pool.plans))
    return np.asarray(pool.sensitivity @ pool.sensitivity.T + scale**2 * rest)


class TestKernel:
    @pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
    def test_is_the_formula(self, pool: Pool, rows: Floats, scale: float) -> None:
        from domino_tune.search.gaussian_process import PlanKernel

        kernel = PlanKernel(3, scale)
        assert kernel(rows) == pytest.approx(covariance(pool, scale), abs=1e-12)
        assert kernel(rows, rows[:5]) == pytest.approx(covariance(pool, scale)[:, :5], abs=1e-12)
        assert kernel.diag(rows) == pytest.approx(np.diag(kernel(rows)))

    def test_gradient_is_the_difference_quotient(self, rows: Floats) -> None:
        from domino_tune.search.gaussian_process import PlanKernel

        kernel, step = PlanKernel(3, 1.3), 1e-5
        value, gradient = kernel(rows, eval_gradient=True)
        assert value == pytest.approx(kernel(rows))
        above, below = (
            kernel.clone_with_theta(kernel.theta + sign * step)(rows) for sign in (1, -1)
        )
        assert gradient.shape == (40, 40, 1)
        assert gradient[:, :, 0] == pytest.approx((above - below) / (2 * step), abs=1e-9)

    def test_hyperparameter_is_the_scale(self) -> None:
        from sklearn.base import clone

        from domino_tune.search.gaussian_process import SCALE_BOUNDS, PlanKernel

        kernel = PlanKernel(3, 2.0)
        assert kernel.theta == pytest.approx(np.log([2.0]))
        assert kernel.bounds == pytest.approx(np.log([SCALE_BOUNDS]))
        assert clone(kernel) == kernel
        assert not kernel.is_stationary()


class TestPosterior:
    def test_is_the_formula_at_the_likeliest_scale(self, pool: Pool) -> None:
        from domino_tune.search.gaussian_process import SCALE_BOUNDS, posterior_of

        drawn = np.random.default_rng(1)
        observed = list(OBSERVED)
        log_ns = pool.log_prior[observed] + drawn.normal(0, 0.1, len(observed))
        found = posterior_of(
            pool, dict(zip(OBSERVED, zip(log_ns, ERRORS, strict=True), strict=True))
        )
        off = log_ns - pool.log_prior[observed]
        scales = np.linspace(*SCALE_BOUNDS, 2000)
        scale = max(scales, key=lambda one: self.log_likelihood(pool, one, off))
        whole = covariance(pool, scale)
        gain = whole[:, observed] @ np.linalg.inv(self.noisy(whole))
        assert found.mean == pytest.approx(pool.log_prior + gain @ off, abs=1e-4)
        variance = np.diag(whole) - np.einsum("ij,ij->i", gain, whole[:, observed])
        assert found.deviation**2 == pytest.approx(variance, abs=1e-4)

    def noisy(self, whole: Floats) -> Floats:
        return whole[np.ix_(OBSERVED, OBSERVED)] + np.diag(ERRORS**2 + 1e-10)

    def log_likelihood(self, pool: Pool, scale: float, off: Floats) -> float:
        matrix = self.noisy(covariance(pool, scale))
        return float(-off @ np.linalg.solve(matrix, off) - np.linalg.slogdet(matrix)[1])

    def test_an_exact_observation_is_believed(self, pool: Pool) -> None:
        from domino_tune.search.gaussian_process import posterior_of

        found = posterior_of(pool, {7: (19.0, 0.0), 8: (19.5, 0.0)})
        assert found.mean[[7, 8]] == pytest.approx([19.0, 19.5], abs=1e-4)
        assert found.deviation[[7, 8]] == pytest.approx(0, abs=1e-4)

    def test_more_noise_moves_it_less(self, pool: Pool) -> None:
        from domino_tune.search.gaussian_process import posterior_of

        moves = [
            abs(posterior_of(pool, {7: (pool.log_prior[7] + 0.1, error)}).mean[8]
                - pool.log_prior[8])
            for error in (1e-3, 0.05, 1.0)
        ]  # fmt: skip
        assert moves == sorted(moves, reverse=True)


def test_improvement_falls_from_first_to_last(pool: Pool) -> None:
    observations = {0: (float(pool.log_prior[0]), 1e-3), 9: (float(pool.log_prior[9]) + 0.1, 1e-3)}
    candidates = [index for index in range(40) if index not in observations]
    ranked = by_improvement(pool, observations, candidates)
    assert sorted(index for index, _ in ranked) == candidates
    gains = [gain for _, gain in ranked]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0


def test_improvement_is_what_is_expected_below_the_best_that_was_observed(pool: Pool) -> None:
    from scipy.stats import norm

    from domino_tune.search.gaussian_process import posterior_of

    observations = {0: (float(pool.log_prior[0]), 1e-3), 9: (float(pool.log_prior[9]) + 0.1, 1e-3)}
    found = posterior_of(pool, observations)
    below = found.mean[[0, 9]].min() - found.mean
    with np.errstate(divide="ignore"):
        sure = below / found.deviation
    expected = below * norm.cdf(sure) + found.deviation * norm.pdf(sure)
    for index, gain in by_improvement(pool, observations, range(10, 40)):
        assert gain == pytest.approx(expected[index], abs=1e-12)
