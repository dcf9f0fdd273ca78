"""The contract of every search: one class, run over all of SEARCHES."""

from __future__ import annotations

import numpy as np
import pytest

from domino_tune.search import FIRST_CUTS, SEARCHES, rank
from domino_tune.search.problem import Evaluation, SearchOptions, SearchResult, Trial, choose_best
from domino_tune.search.space import Pool, SpaceSpec, encode
from simulator.errors import InfeasiblePlanError, InputError
from simulator.plan import SlicePlan
from tests.unit.domino_tune.search.bumpy import BumpyProblem, space_of


class MisledProblem(BumpyProblem):
    """Its estimate takes communication for nearly free and so prefers one slice. No bound helps."""

    def prior_ns(self, plan: SlicePlan) -> float:
        return BumpyProblem(plans=(), comm=0.05).prior_ns(plan)

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        return 0


class InterruptedProblem(BumpyProblem):
    """Someone presses Ctrl-C during the third evaluation."""

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        if len(self.asked) == 2:
            raise KeyboardInterrupt
        return super().evaluate(plan)


@pytest.mark.parametrize("search", SEARCHES)
class TestEverySearch:
    def run(
        self, search: str, problem: BumpyProblem, trials: int | None = None, seed: int = 0
    ) -> SearchResult:
        return SEARCHES[search](problem, SearchOptions(trials=trials, seed=seed))

    def test_same_seed_same_result(self, search: str) -> None:
        first = self.run(search, BumpyProblem(), trials=12, seed=7)
        assert first == self.run(search, BumpyProblem(), trials=12, seed=7)

    def test_evaluates_nothing_twice(self, search: str) -> None:
        problem = BumpyProblem()
        result = self.run(search, problem, trials=30)
        assert len(set(problem.asked)) == len(problem.asked) == result.evaluations

    def test_stays_within_its_trials(self, search: str) -> None:
        result = self.run(search, BumpyProblem(), trials=9)
        assert result.evaluations == len(result.trials) == 9
        assert result.optimality == "best_found"

    def test_best_is_chosen_by_the_tie_rule(self, search: str) -> None:
        result = self.run(search, BumpyProblem(), trials=25)
        assert result.best == choose_best(result.trials)

    def test_trials_tell_the_truth(self, search: str) -> None:
        problem = BumpyProblem()
        for trial in self.run(search, problem, trials=10).trials:
            assert trial.plan == problem.plans[trial.index]
            assert trial.iteration_ns == problem.time_ns(trial.plan)
            assert trial.peak_bytes == problem.peak_bytes(trial.plan)

    def test_what_does_not_fit_is_counted_and_not_chosen(self, search: str) -> None:
        limit_bytes = 43 * 10**9
        problem = BumpyProblem(limit_bytes=limit_bytes)
        result = self.run(search, problem, trials=30)
        assert result.infeasible == {"memory": result.evaluations - len(result.trials)}
        assert result.infeasible["memory"] > 0
        assert result.best.peak_bytes <= limit_bytes

    def test_says_so_when_nothing_fits(self, search: str) -> None:
        with pytest.raises(InfeasiblePlanError, match="None of the 5 plans tried") as caught:
            self.run(search, BumpyProblem(limit_bytes=1), trials=5)
        assert caught.value.reason == "memory"
        assert str(caught.value).endswith(" Others may: allow more --trials.")
        every = BumpyProblem(limit_bytes=1, plans=space_of()[:5])
        with pytest.raises(InfeasiblePlanError, match=r"5 plans tried of 5 .* bytes\.$"):
            self.run(search, every)

    def test_a_space_of_one_plan(self, search: str) -> None:
        result = self.run(search, BumpyProblem(plans=space_of()[3:4]))
        assert (result.evaluations, result.optimality, result.space_size) == (1, "proven", 1)

    def test_an_empty_space_is_refused(self, search: str) -> None:
        with pytest.raises(InputError, match="No plan is left"):
            self.run(search, BumpyProblem(plans=()))

    def test_with_trials_enough_for_all_it_is_proven(self, search: str) -> None:
        problem = BumpyProblem(plans=space_of()[::9])
        result = self.run(search, problem, trials=1000)
        assert result.optimality == "proven"
        assert result.evaluations + result.pruned == len(problem.plans)
        assert result.best == choose_best(_all_trials(problem))

    def test_interrupt_is_not_swallowed(self, search: str) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.run(search, InterruptedProblem(), trials=10)

    def test_progress_sees_every_trial(self, search: str) -> None:
        seen: list[Trial | None] = []
        options = SearchOptions(trials=8, progress=seen.append)
        assert SEARCHES[search](BumpyProblem(), options).trials == tuple(seen)


class TestExhaustive:
    @pytest.fixture(params=range(8))
    def problem(self, request: pytest.FixtureRequest) -> BumpyProblem:
        return BumpyProblem(comm=0.2 + 0.15 * request.param, seed=request.param)

    def test_agrees_with_brute_force(self, problem: BumpyProblem) -> None:
        result = SEARCHES["exhaustive"](problem, SearchOptions())
        assert result.best == choose_best(_all_trials(problem))
        assert result.optimality == "proven"
        assert result.evaluations + result.pruned == len(problem.plans)

    def test_bounds_prune(self, problem: BumpyProblem) -> None:
        assert SEARCHES["exhaustive"](problem, SearchOptions()).pruned > 0


class TestBayes:
    @pytest.mark.parametrize("comm", [0.6, 1.2])
    def test_finds_the_fastest_plan_from_afar_where_random_plans_do_not(self, comm: float) -> None:
        """It begins with plans that are more than 15 % slower, and always comes within 1 %."""
        found, drawn = [], []
        for seed in range(6):
            problem = MisledProblem(comm=comm, seed=seed)
            fastest_ns = min(trial.iteration_ns for trial in _all_trials(problem))
            times_ns = self.times_ns(problem, "bayes")
            assert min(times_ns[:FIRST_CUTS]) > 1.15 * fastest_ns
            assert min(times_ns) <= 1.01 * fastest_ns
            found.append(min(times_ns) == fastest_ns)
            drawn += [
                min(self.times_ns(problem, "random", 4 * seed + draw)) == fastest_ns
                for draw in range(4)
            ]
        assert sum(found) >= 0.8 * len(found)
        assert sum(drawn) <= 0.4 * len(drawn)

    def times_ns(self, problem: BumpyProblem, search: str, seed: int = 0) -> list[int]:
        """Times of the plans that a search of 30 trials evaluates."""
        result = SEARCHES[search](problem, SearchOptions(trials=30, seed=seed))
        return [trial.iteration_ns for trial in result.trials]

    def test_first_points_differ_in_cut(self) -> None:
        result = SEARCHES["bayes"](BumpyProblem(), SearchOptions(trials=4))
        assert len({trial.plan.slices for trial in result.trials}) == 4

    def test_a_flat_problem_does_not_break_the_fit(self) -> None:
        problem = BumpyProblem(bump=0.0, comm=0.0, plans=space_of()[:6])
        problem.prior_ns = problem.time_ns  # type: ignore[method-assign]
        assert SEARCHES["bayes"](problem, SearchOptions()).optimality == "proven"

    def test_every_open_plan_is_ranked(self) -> None:
        problem = BumpyProblem()
        plans = tuple(problem.plans)
        prior_ns = np.array([problem.prior_ns(plan) for plan in plans])
        pool = Pool(
            plans=plans, points=encode(plans), log_prior=np.log(prior_ns),
            sensitivity=np.ones((len(plans), 1)),
        )  # fmt: skip
        history = {i: float(problem.time_ns(plans[i])) for i in range(0, 60, 10)} | {3: None}
        ranked = rank(pool, history, {1, 2})
        assert sorted(ranked) == sorted(set(range(len(plans))) - history.keys() - {1, 2})
        assert ranked == rank(pool, history, {1, 2})

    def test_no_plan_of_a_large_pool_is_asked_twice(self) -> None:
        problem = BumpyProblem(plans=space_of(SpaceSpec()))
        assert len(problem.plans) > 20_000
        result = SEARCHES["bayes"](problem, SearchOptions(trials=12))
        assert len({trial.index for trial in result.trials}) == 12


def _all_trials(problem: BumpyProblem) -> list[Trial]:
    return [
        Trial(
            plan=plan,
            iteration_ns=problem.time_ns(plan),
            peak_bytes=problem.peak_bytes(plan),
            index=index,
        )
        for index, plan in enumerate(problem.plans)
    ]
