"""Factors of a machine from measured iterations: the most likely ones, and how uncertain they
remain.

The unknowns are the logarithms of the factors of ``simulator.draws.PARTS`` and the constant
of an iteration. Their priors are the errors of the profile's look-ups. A measured iteration has an
error that starts at NOISE and is estimated along with the unknowns, since runs may depend on
something that no part explains. Least squares find the maximum of the posterior, and the Jacobian
there gives its width (Laplace).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from domino_tune.base.cores import Ahead, in_turn
from simulator.case import Case
from simulator.draws import MOST_FACTOR, PARTS, Draw, family_of
from simulator.dtypes import MS_PER_NS
from simulator.op_table import listing_of
from simulator.ops import Fused
from simulator.plan import SlicePlan
from simulator.predict import played, predict

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOISE: Final = 0.02
"""Initial relative error of a measured iteration (assumed: runs of one job differ by about this
much).
"""
NOISE_RUNS: Final = 4
"""Weight of NOISE relative to the measured runs, in runs (assumed)."""
MOST_ROUNDS: Final = 4
SETTLED: Final = 0.1
"""Relative change of the noise that makes another fit of the factors necessary."""
LAUNCH_ERROR: Final = 2.0
"""Least prior error of launch costs (assumed): hosts differ by more than a profile knows."""
CONSTANT_SHARE: Final = 0.05
"""Prior width of the constant, as a share of the shortest run (assumed)."""
SLOW_HOSTS: Final = (4.0, 12.0)
"""Further factors of launch costs from which the search starts."""
LEAST_ERROR: Final = 0.01
STEP: Final = 0.03
"""Step of the Jacobian's differences, in logarithms; times are whole nanoseconds."""
MOST_STEPS: Final = 12


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A measured iteration, as a case and a plan. Its time was printed rounded, to within
    ``rounding_ms``. ``note``: how it was read, for people.
    """

    label: str
    case: Case
    plan: SlicePlan
    measured_ms: float
    rounding_ms: float = 0.0
    note: str = ""

    @property
    def rounding(self) -> float:
        """Relative standard error from rounding, with any time in the range equally likely."""
        return self.rounding_ms / math.sqrt(3) / self.measured_ms


class Learnt(NamedTuple):
    """A part's factor; its relative error before (``prior``) and after the runs."""

    factor: float
    prior: float
    error: float


class Fitted(NamedTuple):
    """The result of the fit; times in ms. ``noise``: relative error of the runs; ``left_out_ms``:
    each run's prediction from all others.
    """

    parts: dict[str, Learnt]
    constant_ms: float
    constant_prior_ms: float
    constant_error_ms: float
    noise: float
    before_ms: tuple[float, ...]
    after_ms: tuple[float, ...]
    left_out_ms: tuple[float, ...]


def fit_runs(runs: Sequence[MeasuredRun], ahead: Ahead = in_turn) -> Fitted:
    """Return the factors with which the profile of ``runs`` explains them best."""
    problem = _Problem(runs, ahead)
    starts = problem.starts()
    x = _best(problem, starts)
    for _ in range(MOST_ROUNDS):
        if not problem.learn_noise(x):
            break
        x, _ = _least_squares(problem, x)
    return _fitted(problem, starts[0], x)


def _best(problem: _Problem, starts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the most likely unknowns found from any of ``starts``."""
    found, cost = _least_squares(problem, starts[0])
    for start in starts[1:]:
        if problem.likely_cost(start) >= cost:
            continue  # another host would explain the runs worse
        tried, tried_cost = _least_squares(problem, start)
        if tried_cost < cost:
            found, cost = tried, tried_cost
    return found


def _least_squares(
    problem: _Problem, start: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Return the most likely unknowns near ``start``, and half the sum of their squared
    residuals.
    """
    from scipy.optimize import least_squares

    lower = np.full(len(start), -np.inf)
    lower[-1] = -1e-9  # the constant adds time, it cannot save any
    found = least_squares(
        problem.residuals, start, jac=problem.jacobian, bounds=(lower, np.inf),
        max_nfev=MOST_STEPS, xtol=1e-3, ftol=1e-3, gtol=1e-6,
    )  # fmt: skip
    return found.x, float(found.cost)


def _fitted(problem: _Problem, before: NDArray[np.float64], x: NDArray[np.float64]) -> Fitted:
    jacobian = problem.jacobian(x)
    widths = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    parts = {
        name: Learnt(
            math.exp(log), math.expm1(problem.widths[name]),
            math.expm1(widths[number] * problem.widths[name]),
        )
        for number, (name, log) in enumerate(problem.logs(x).items())
    }  # fmt: skip
    scale_ms = problem.constant_ms
    return Fitted(
        parts=parts,
        constant_ms=max(0.0, x[-1]) * scale_ms,
        constant_prior_ms=scale_ms,
        constant_error_ms=float(widths[-1]) * scale_ms,
        noise=problem.noise,
        before_ms=tuple(problem.times_ms(before)),
        after_ms=tuple(problem.times_ms(x)),
        left_out_ms=problem.left_out_ms(x, jacobian),
    )


def predicted_ms(
    runs: Sequence[MeasuredRun], fitted: Fitted, ahead: Ahead = in_turn
) -> list[float]:
    """Return the times of ``runs`` with factors that were fitted to others."""
    factors = {name: math.log(one.factor) for name, one in fitted.parts.items()}
    items = [(number, factors, fitted.constant_ms) for number in range(len(runs))]
    found = ahead(lambda item: _time_ms(runs[item[0]], *item[1:]), items)
    return [time_ms() for _, time_ms in found]


def _time_ms(run: MeasuredRun, logs: Mapping[str, float], constant_ms: float) -> float:
    draw = Draw(
        factors={family: math.exp(log) for name, log in logs.items() for family in PARTS[name]}
    )
    return predict(run.case.drawn(draw), run.plan).makespan_ns * MS_PER_NS + constant_ms


class _Problem:
    """Residuals of runs and priors, each divided by its width; unknowns are in units of their prior
    widths.
    """

    def __init__(self, runs: Sequence[MeasuredRun], ahead: Ahead) -> None:
        self.runs = runs
        self.widths = _prior_widths(runs)
        self.names = tuple(self.widths)
        self.constant_ms = CONSTANT_SHARE * min(run.measured_ms for run in runs)
        self.noise = NOISE
        self._ahead = ahead
        self._times: dict[tuple[float, ...], NDArray[np.float64]] = {}

    def starts(self) -> list[NDArray[np.float64]]:
        """Return where to start: at the profile, and with slower hosts. If no iteration waits for
        its host, no small step shows that a slow host would explain it.
        """
        made = [np.zeros(len(self.names) + 1)]
        for factor in SLOW_HOSTS if "launch" in self.names else ():
            slow = made[0].copy()
            slow[self.names.index("launch")] = math.log(factor) / self.widths["launch"]
            made.append(slow)
        return made

    def logs(self, x: NDArray[np.float64]) -> dict[str, float]:
        """Return the logarithms of the factors at ``x``, limited to the largest factor allowed."""
        most = math.log(MOST_FACTOR)
        return {
            name: min(most, max(-most, float(x[number]) * self.widths[name]))
            for number, name in enumerate(self.names)
        }

    def times_ms(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the time of each run at ``x``."""
        self._compute([x])
        return self._times[tuple(x)]

    def _compute(self, points: Sequence[NDArray[np.float64]]) -> None:
        """Compute the times at those points that are not known yet, all at once."""
        new = [point for point in points if tuple(point) not in self._times]
        items = [
            (number, self.logs(x), x[-1] * self.constant_ms)
            for x in new
            for number in range(len(self.runs))
        ]
        found = self._ahead(lambda item: _time_ms(self.runs[item[0]], *item[1:]), items)
        times = np.array([time_ms() for _, time_ms in found]).reshape(len(new), len(self.runs))
        self._times.update({tuple(x): row for x, row in zip(new, times, strict=True)})

    def _errors(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        rounding = np.array([run.rounding for run in self.runs])
        errors: NDArray[np.float64] = self._off(x) / np.hypot(self.noise, rounding)
        return errors

    def _off(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithms of predicted over measured times."""
        measured = np.array([run.measured_ms for run in self.runs])
        off: NDArray[np.float64] = np.log(self.times_ms(x) / measured)
        return off

    def learn_noise(self, x: NDArray[np.float64]) -> bool:
        """Set the noise to that of the runs at ``x``; return whether it changed.

        The number of runs that the unknowns can explain by themselves (the trace of the hat matrix)
        does not count as evidence, nor does the error that rounding explains.
        """
        jacobian, count = self.jacobian(x), len(self.runs)
        rounding = np.array([run.rounding for run in self.runs])
        told = jacobian[:count]
        explained = float(np.trace(told @ np.linalg.inv(jacobian.T @ jacobian) @ told.T))
        unexplained = np.maximum(0.0, self._off(x) ** 2 - rounding**2)
        squares = NOISE_RUNS * NOISE**2 + float(unexplained.sum())
        noise = math.sqrt(squares / (NOISE_RUNS + count - explained))
        changed = abs(noise / self.noise - 1) > SETTLED
        self.noise = noise
        return changed

    def residuals(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the runs' errors, then the unknowns."""
        return np.concatenate([self._errors(x), x])

    def likely_cost(self, x: NDArray[np.float64]) -> float:
        """Return half the sum of squared residuals after one Newton step from ``x``, if they are
        linear.
        """
        residuals, jacobian = self.residuals(x), self.jacobian(x)
        step = np.linalg.lstsq(jacobian, -residuals, rcond=None)[0]
        return 0.5 * float(((residuals + jacobian @ step) ** 2).sum())

    def jacobian(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the derivatives of the residuals."""
        steps = [STEP / self.widths[name] for name in self.names] + [0.1]
        points = [x + step * unit for step, unit in zip(steps, np.eye(len(x)), strict=True)]
        self._compute([x, *points])
        base = self._errors(x)
        columns = [
            (self._errors(point) - base) / step for point, step in zip(points, steps, strict=True)
        ]
        return np.vstack([np.stack(columns, axis=1), np.eye(len(x))])

    def left_out_ms(
        self, x: NDArray[np.float64], jacobian: NDArray[np.float64]
    ) -> tuple[float, ...]:
        """Return each run's time as predicted from the others, by one Newton step from ``x``."""
        residuals, items = self.residuals(x), []
        for number in range(len(self.runs)):
            kept = np.arange(len(residuals)) != number
            some, rest = jacobian[kept], residuals[kept]
            moved = x - np.linalg.solve(some.T @ some, some.T @ rest)
            moved[-1] = max(0.0, moved[-1])
            items.append((number, self.logs(moved), moved[-1] * self.constant_ms))
        found = self._ahead(lambda item: _time_ms(self.runs[item[0]], *item[1:]), items)
        return tuple(time_ms() for _, time_ms in found)


def _prior_widths(runs: Sequence[MeasuredRun]) -> dict[str, float]:
    """Return the prior width of each part's logarithm: its look-ups' errors weighted by
    their time.
    """
    spent, unsure = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
    part_of = {family: part for part, families in PARTS.items() for family in families}
    launches = 0.0
    laws = [run.case.power for run in runs if run.case.power is not None]
    for run in runs:
        found = played(run.case, run.plan)
        for (signature, *_), count in listing_of(found.schedule).counts.items():
            for one in signature if isinstance(signature, Fused) else (signature,):
                part, estimate = part_of[family_of(one)], found.cost.estimate(one)
                spent[part] += count * estimate.duration_us
                unsure[part] += count * estimate.duration_us * estimate.error
        if found.cost.launch.mode != "none":
            launches = max(launches, LAUNCH_ERROR, found.cost.launch.error)
    widths = {
        part: math.log1p(max(LEAST_ERROR, unsure[part] / spent[part]))
        for part in PARTS
        if spent[part]
    }
    if launches:
        widths["launch"] = math.log1p(launches)
    if laws:
        widths["power"] = math.log1p(max(LEAST_ERROR, *(one.family("gemm").error for one in laws)))
    return widths
