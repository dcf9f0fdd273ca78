"""Search by measurement, against machines that the simulator is wrong about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from domino_tune.search.measured import (
    MeasuredOptions,
    MeasuredRatios,
    finalists,
    observations_of,
    propose,
    search_measured,
)
from domino_tune.search.ratios import BASELINE_RATIO, Ratio, pooled, ratio_of
from simulator.errors import InputError
from tests.unit.domino_tune.search.real_machine import RealMachine, Runs

WRONG: tuple[dict[str, float], ...] = (
    {"contention": 2.0},
    {"contention": 0.5, "link_latency": 2.0},
    {"contention": 1.6, "gpu_flops": 0.85},
)
LINKS = (1.0, 0.1)


@pytest.fixture(scope="module")
def machine() -> RealMachine:
    return RealMachine(LINKS[0], WRONG[:2])


class TestSearch:
    @pytest.fixture
    def runs(self, machine: RealMachine) -> Runs:
        return Runs(machine.truths[1], np.random.default_rng(1))

    def test_baseline_first_then_the_simulators_best(
        self, machine: RealMachine, runs: Runs
    ) -> None:
        pool = machine.pool
        runs.search(pool, MeasuredOptions())
        assert runs.launches[0] == ()
        assert runs.launches[1] == (1 + int(np.argmin(pool.log_prior[1:])),)
        cuts = {
            (pool.plans[i].row_slices, pool.plans[i].attn_col_slices, pool.plans[i].mlp_col_slices)
            for (i,) in runs.launches[1:4]
        }
        assert len(cuts) == 3

    def test_nothing_is_evaluated_twice(self, machine: RealMachine, runs: Runs) -> None:
        result = runs.search(machine.pool, MeasuredOptions(method="random", trials=12))
        alone = runs.launches[: len(result.ratios)]
        assert len(set(alone)) == len(alone) == 12

    @pytest.mark.parametrize("method", ["bayes", "random", "exhaustive"])
    def test_what_is_known_is_not_run_again(self, machine: RealMachine, method: str) -> None:
        """Stopped after any launch and started again, the search makes the same choices."""
        pool = machine.pool
        options = MeasuredOptions(method=method, trials=6)  # type: ignore[arg-type]
        whole = Runs(machine.truths[1], np.random.default_rng(1))
        expected = whole.search(pool, options)
        for stop in range(1, len(whole.launches)):
            first, ratios = Runs(whole.truth, np.random.default_rng(1)), MeasuredRatios()

            def measure(index: int, runs: Runs = first, most: int = stop) -> Ratio | None:
                if len(runs.launches) == most:
                    raise KeyboardInterrupt
                return runs.measure(index)

            def compare(indices: Sequence[int]) -> dict[int, Ratio]:
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                search_measured(pool, measure, compare, options, ratios)
            assert len(ratios.evaluated) == stop
            rest = Runs(whole.truth, first.drawn)
            result = search_measured(pool, rest.measure, rest.compare, options, ratios)
            assert first.launches + rest.launches == whole.launches
            assert result == expected

    def test_a_plan_that_cannot_run_is_left_out(self, machine: RealMachine) -> None:
        pool = machine.pool
        runs = Runs(machine.truths[0], np.random.default_rng(2))
        bad = 1 + int(np.argmin(pool.log_prior[1:]))
        result = search_measured(
            pool, lambda i: None if i == bad else runs.measure(i), runs.compare, MeasuredOptions()
        )
        assert result.failed == (bad,)
        assert bad not in result.ratios
        assert result.best != bad

    def test_baseline_wins_where_all_else_is_slower(self, machine: RealMachine) -> None:
        pool = machine.pool
        slow = np.full(len(pool.plans), 0.2)
        slow[0] = 0.0
        result = Runs(slow, np.random.default_rng(3)).search(pool, MeasuredOptions())
        assert result.best == 0

    def test_all_of_a_small_pool(self, machine: RealMachine) -> None:
        whole = machine.pool
        few = slice(0, 5)
        pool = type(whole)(
            plans=whole.plans[few], points=whole.points[few], log_prior=whole.log_prior[few],
            sensitivity=whole.sensitivity[few],
        )  # fmt: skip
        runs = Runs(machine.truths[0][few], np.random.default_rng(4))
        result = runs.search(pool, MeasuredOptions(method="exhaustive", trials=64))
        assert (result.stopped, len(result.ratios)) == ("all measured", 5)
        assert propose(pool, dict(result.ratios), MeasuredOptions()) is None

    def test_a_budget_of_just_all_plans_measures_all(self, machine: RealMachine) -> None:
        whole = machine.pool
        few = slice(0, 4)
        pool = type(whole)(
            plans=whole.plans[few], points=whole.points[few], log_prior=whole.log_prior[few],
            sensitivity=whole.sensitivity[few],
        )  # fmt: skip
        for trials, stopped in ((3, "trials"), (4, "all measured"), (5, "all measured")):
            runs = Runs(machine.truths[0][few], np.random.default_rng(4))
            options = MeasuredOptions(method="exhaustive", trials=trials)
            assert runs.search(pool, options).stopped == stopped

    def test_bad_surprises_of_a_cut_warn_of_its_like(self, machine: RealMachine) -> None:
        from domino_tune.search.gaussian_process import posterior_of

        pool = machine.pool
        index = next(i for i, plan in enumerate(pool.plans) if plan.row_slices == 4)
        like = next(i for i, plan in enumerate(pool.plans) if plan.row_slices == 4 and i != index)
        simulated = pool.log_prior - pool.log_prior[0]
        slow = Ratio(log=float(simulated[index]) + 0.2, error=0.01, degrees_of_freedom=5)
        found = posterior_of(pool, observations_of(pool, {0: BASELINE_RATIO, index: slow}))
        assert found.mean[like] > pool.log_prior[like] + 0.05
        assert found.mean[0] == pytest.approx(pool.log_prior[0], abs=1e-3, rel=0)


class TestFinalists:
    def ratio(self, log: float, error: float = 0.004) -> Ratio:
        return Ratio(log=log, error=error, degrees_of_freedom=9)

    def test_close_ones_are_run_again(self) -> None:
        ratios = {0: BASELINE_RATIO, 1: self.ratio(-0.1), 2: self.ratio(-0.105)}
        assert finalists(ratios) == [2, 1]

    def test_a_clear_winner_is_not(self) -> None:
        ratios = {0: BASELINE_RATIO, 1: self.ratio(-0.1), 2: self.ratio(-0.2)}
        assert finalists(ratios) == []

    def test_an_unsure_winner_is(self) -> None:
        assert finalists({0: BASELINE_RATIO, 2: self.ratio(-0.2, error=0.02)}) == [2]

    def test_at_most_three(self) -> None:
        ratios = {index: self.ratio(-0.1 - index * 1e-4) for index in range(1, 9)}
        assert finalists({0: BASELINE_RATIO, **ratios}) == [8, 7, 6]


class TestRatio:
    def test_drift_cancels(self) -> None:
        drift = np.exp(np.linspace(0, 0.5, 10))
        found = ratio_of((9e8 * drift).astype(int).tolist(), (1e9 * drift).astype(int).tolist())
        assert found.value == pytest.approx(0.9, rel=1e-6)

    def test_a_disturbed_step_tells_nothing(self) -> None:
        steps = [100, 101, 99, 100, 102, 98, 100, 101, 99, 900]
        assert ratio_of(steps, [100] * 10).value == pytest.approx(1.0, abs=0.01)

    def test_interval_holds_the_truth_as_often_as_it_says(self) -> None:
        drawn = np.random.default_rng(0)
        held = 0
        for _ in range(400):
            noise = np.exp(drawn.normal(0, 0.02, (2, 10)))
            found = ratio_of(*(1e9 * noise).astype(int).tolist())
            held += found.low <= 1 <= found.high
        assert 0.91 <= held / 400 <= 0.99

    def test_pooling_narrows(self) -> None:
        one, other = (Ratio(log=log, error=0.01, degrees_of_freedom=5) for log in (0.1, 0.12))
        both = pooled([one, other])
        assert both.log == pytest.approx(0.11)
        assert both.error < one.error

    @pytest.mark.parametrize("steps", [[1, 2], [1, 2, 0]])
    def test_too_little_is_refused(self, steps: list[int]) -> None:
        with pytest.raises(InputError, match="3 rounds or more"):
            ratio_of(steps, [1, 1, 1])
