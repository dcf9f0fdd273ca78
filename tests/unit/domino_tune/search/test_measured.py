"""Search by measurement, against machines that the simulator is wrong about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from domino_tune.base.progress import no_progress
from domino_tune.requests import MeasureRequest
from domino_tune.search.measured import (
    BASELINE_RATIO,
    CHANGED,
    POOL,
    SLOWER,
    ChosenPool,
    MeasuredOptions,
    MeasuredRatios,
    Ratio,
    _promising,
    baseline_of,
    choose_pool,
    finalists,
    measured_pool,
    observations_of,
    pooled,
    propose,
    ratio_of,
    search_measured,
)
from domino_tune.search.problem import Evaluation
from domino_tune.search.simulated import SimulatedPlans
from domino_tune.search.space import Space, SpaceSpec, enumerate_plans
from domino_tune.store.profiles import load_profile
from simulator.case import Case
from simulator.errors import InfeasiblePlanError, InputError
from simulator.plan import SlicePlan
from simulator.predict import predict
from simulator.specs import ClusterSpec, Workload
from tests.unit.domino_tune.search.real_machine import MODEL, RealMachine, Runs
from tests.unit.simulator.near import near

# Ratios of rounds ---------------------------------------------------------------------------------
# Trimmed means, winsorized errors, Student's t and pooling, by hand.

BASE = 10**9


def ratio(logs: list[float]) -> Ratio:
    return ratio_of([round(BASE * math.exp(log)) for log in logs], [BASE] * len(logs))


def test_a_fifth_at_each_end_is_left_out() -> None:
    """Of ten rounds, six are averaged. For the error the ends are pulled in, to 3 and 8 (1/100):
    twice the spread of (3, 3, 3, 4, 5, 6, 7, 8, 8, 8) over six tenths of √10."""
    found = ratio([0.99, 0.08, 0.01, 0.07, 0.02, 0.06, 0.03, 0.05, 0.04, 0.97])
    assert found.log == pytest.approx((0.03 + 0.04 + 0.05 + 0.06 + 0.07 + 0.08) / 6, abs=1e-6)
    pulled = [3, 3, 3, 4, 5, 6, 7, 8, 8, 8]
    mean = sum(pulled) / 10
    deviation = math.sqrt(sum((x - mean) ** 2 for x in pulled) / 9) / 100
    assert found.error == pytest.approx(deviation / (0.6 * math.sqrt(10)), rel=1e-4)
    assert found.degrees_of_freedom == 5


def test_a_few_rounds_are_averaged_whole() -> None:
    found = ratio([0.01, 0.02, 0.06])
    assert found.log == pytest.approx(0.03, abs=1e-6)
    deviation = math.sqrt((0.02**2 + 0.01**2 + 0.03**2) / 2)
    assert found.error == pytest.approx(deviation / math.sqrt(3), rel=1e-4)
    assert found.degrees_of_freedom == 2
    assert ratio([0.0, 0.5, 0.01, 0.02, -0.5]).log == pytest.approx(0.01, abs=1e-6)


def test_rounds_count_where_both_ran_and_errors_have_a_least() -> None:
    found = ratio_of([2 * BASE] * 9, [BASE] * 4)
    assert (found.value, found.error) == near(2.0, 5e-4)
    assert found.degrees_of_freedom == 3
    for plan, base in (([BASE] * 2, [BASE] * 9), ([BASE] * 3, [BASE, 0, BASE])):
        with pytest.raises(InputError, match="3 rounds or more"):
            ratio_of(plan, base)


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.7062), (5, 2.57058), (30, 2.04227)])
def test_intervals_are_students(freedom: int, t: float) -> None:
    found = Ratio(log=0.1, error=0.01, degrees_of_freedom=freedom)
    assert found.half_width == pytest.approx(0.01 * t, rel=1e-4)
    assert found.low == pytest.approx(math.exp(0.1 - 0.01 * t), rel=1e-4)
    assert found.high == pytest.approx(math.exp(0.1 + 0.01 * t), rel=1e-4)
    assert BASELINE_RATIO.half_width == 0.0
    assert BASELINE_RATIO.low == BASELINE_RATIO.high == 1.0


def exact(log: float) -> Ratio:
    return Ratio(log=log, error=0.0, degrees_of_freedom=0)


def test_intervals_overlap_where_they_touch() -> None:
    wide = Ratio(log=0.0, error=0.01, degrees_of_freedom=1)
    assert wide.overlaps(exact(wide.half_width - 1e-9))
    assert exact(-wide.half_width + 1e-9).overlaps(wide)
    assert not wide.overlaps(exact(wide.half_width + 1e-9))
    assert not wide.overlaps(exact(-wide.half_width - 1e-9))
    assert exact(0.0).overlaps(exact(0.0))


def test_pooled_ratios_weigh_by_their_precision() -> None:
    sure = Ratio(log=0.10, error=0.01, degrees_of_freedom=5)
    unsure = Ratio(log=0.40, error=0.02, degrees_of_freedom=2)
    both = pooled([sure, unsure])
    assert both.log == pytest.approx((4 * 0.10 + 0.40) / 5)
    assert both.error == pytest.approx(1 / math.sqrt(1 / 0.01**2 + 1 / 0.02**2))
    assert both.degrees_of_freedom == 7
    assert pooled([unsure]) is unsure


# Which plans a measured search chooses from -------------------------------------------------------

CASE = Case(
    model=MODEL, workload=Workload(seq_length=1024, micro_batch_size=8),
    cluster=ClusterSpec(tp=4), profile=load_profile("h100-dgx"),
)  # fmt: skip
FEW = SpaceSpec(row_slices=(1, 2), col_slices=(1, 2), dgrad_slices=(), orders=("intra",))


def chosen(
    search: str, spec: SpaceSpec, trials: int | None = None, measured: tuple[SlicePlan, ...] = ()
) -> ChosenPool:
    space = enumerate_plans(CASE.model, CASE.workload, spec=spec)
    request = MeasureRequest(
        model="gpt3-13b", profile="h100-dgx", tp=4, seq_length=1024, micro_batch_size=8,
        search=search, trials=trials,
    )  # fmt: skip
    problem = SimulatedPlans(case=CASE, plans=space)
    return choose_pool(problem, space, request, measured, no_progress)


def test_a_small_space_is_taken_whole_behind_the_baseline() -> None:
    for search in ("bayes", "exhaustive"):
        found = chosen(search, FEW)
        assert found.whole
        assert found.pool.plans == (baseline_of(CASE), *found.space)
        assert found.pool.plans[0].sequence_parallel


def test_an_exhaustive_search_measures_as_many_as_it_may() -> None:
    """The baseline counts; without ``--trials``, 64 plans are the most."""
    total = len(chosen("bayes", FEW).space) + 1
    assert chosen("exhaustive", FEW, trials=total).whole
    with pytest.raises(InputError, match=f"would measure {total} plans, the baseline included"):
        chosen("exhaustive", FEW, trials=total - 1)
    many = SpaceSpec(row_slices=(1, 2, 4), col_slices=(1, 2, 4), dgrad_slices=())
    with pytest.raises(InputError, match="--trials"):
        chosen("exhaustive", many)


class Cramped(SimulatedPlans):
    """A machine whose memory holds plans of at most ``rows`` slices."""

    rows: int = 1

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        if plan.row_slices > self.rows:
            raise InfeasiblePlanError(f"{plan.row_slices} slices", reason="memory")
        return super().evaluate(plan)


def test_plans_that_do_not_fit_stay_out_and_the_first_says_why_where_none_does() -> None:
    problem = Cramped(case=CASE, plans=enumerate_plans(CASE.model, CASE.workload, spec=FEW))
    plans = [replace(SlicePlan(), row_slices=rows) for rows in (2, 1, 4)]
    assert measured_pool(problem, plans).plans == (baseline_of(CASE), plans[1])
    problem.rows = 0
    with pytest.raises(InfeasiblePlanError, match="2 slices"):
        measured_pool(problem, plans)


def test_a_pool_knows_what_each_error_of_the_profile_would_change() -> None:
    """The changes are of the ratio to the baseline: half a link's bandwidth adds to each plan what
    it does not hide, less what it adds to the baseline."""
    pool = chosen("bayes", FEW).pool
    for number, change in enumerate(CHANGED):
        case = replace(CASE, factors=replace(CASE.factors, **change))
        changed = [
            math.log(predict(case, plan).makespan_ns / predict(CASE, plan).makespan_ns)
            for plan in pool.plans
        ]
        expected = [log - changed[0] for log in changed]
        assert pool.sensitivity[:, number] == pytest.approx(expected, abs=1e-12), change
        assert max(map(abs, expected)) > 0


@cache
def large() -> tuple[SimulatedPlans, Space]:
    spec = SpaceSpec(row_slices=(1, 2, 4, 8), col_slices=(1, 2, 4, 8), dgrad_slices=())
    space = enumerate_plans(CASE.model, CASE.workload, spec=spec)
    return SimulatedPlans(case=CASE, plans=space), space


def test_the_pool_of_a_large_space_has_the_best_of_every_promising_cut() -> None:
    problem, space = large()
    assert len(space) > POOL
    picked = _promising(problem)
    assert len(set(picked)) == len(picked) == POOL
    ranked = sorted(space, key=problem.prior_ns)
    best_ns = problem.prior_ns(ranked[0])
    of_cut: dict[tuple[object, ...], SlicePlan] = {}
    for plan in ranked:
        if problem.prior_ns(plan) <= SLOWER * best_ns:
            cut = plan.row_slices, plan.attn_col_slices, plan.mlp_col_slices
            of_cut.setdefault((cut, plan.order, plan.merge_wgrad), plan)
    assert set(list(of_cut.values())[: POOL // 2]) <= set(picked)
    assert set(ranked[:20]) <= set(picked)


def test_cuts_leave_half_of_a_pool_to_the_best_estimates_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("domino_tune.search.measured.POOL", 16)
    monkeypatch.setattr("domino_tune.search.measured.SEARCHED", 2)
    problem, space = large()
    picked = _promising(problem)
    front, ranked = picked[: 2 + 16 // 2], sorted(space, key=problem.prior_ns)
    assert picked == [*front, *(plan for plan in ranked if plan not in front)][:16]


# Search by measurement, against machines that the simulator is wrong about ------------------------

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

    def test_what_overlaps_from_afar_and_what_is_near_but_sure_is_not(self) -> None:
        far, near = self.ratio(-0.06, error=0.05), self.ratio(-0.08, error=0.0001)
        best = self.ratio(-0.1, error=0.004)
        assert far.overlaps(best)
        assert not near.overlaps(best)
        assert finalists({0: BASELINE_RATIO, 1: best, 2: far, 3: near}) == []

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
