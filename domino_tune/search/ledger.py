"""Ledger: evaluates plans for a search, and records the results."""

from __future__ import annotations

from collections import Counter

from domino_tune.search.problem import (
    Evaluation,
    Optimality,
    Problem,
    Record,
    SearchOptions,
    SearchResult,
    Trial,
    choose_best,
    outcome,
    ties,
)
from simulator.errors import InfeasiblePlanError, InputError


class Ledger:
    """Evaluates plans of a problem by index, each at most once, within a budget.

    ``record`` holds all results; an interrupted search continues from it. Raise InputError if there
    is no plan to search.
    """

    def __init__(self, problem: Problem, options: SearchOptions, *, trials: int | None) -> None:
        self.plans = problem.plans
        if not len(self.plans):
            raise InputError(
                "No plan is left to search: every one is infeasible for this model and batch."
            )
        self._problem = problem
        self._progress = options.progress
        self._pause = options.pause
        self._budget = min(len(self.plans), trials if trials is not None else len(self.plans))
        self.record = Record() if options.record is None else options.record
        self.trials: list[Trial] = self.record.trials
        self.fastest_ns = min((trial.iteration_ns for trial in self.trials), default=None)

    @property
    def evaluations(self) -> int:
        """Return the number of evaluations, including those before an interruption."""
        return len(self.record.history)

    @property
    def spent(self) -> bool:
        """Return whether the budget is used up."""
        return self.evaluations >= self._budget

    def evaluate(self, index: int) -> int | None:
        """Evaluate plan ``index``; return its time in ns, or None if it cannot run."""
        return self.record_outcome(index, outcome(self._problem, self.plans[index]))

    def record_outcome(self, index: int, cost: Evaluation | InfeasiblePlanError) -> int | None:
        """Record the outcome of evaluating plan ``index``; return as ``evaluate`` does."""
        plan = self.plans[index]
        if isinstance(cost, InfeasiblePlanError):
            self.record.history[index] = cost
            self._tell(None)
            return None
        trial = Trial(
            plan=plan, iteration_ns=cost.iteration_ns, peak_bytes=cost.peak_bytes, index=index
        )
        self.record.history[index] = trial
        self.trials.append(trial)
        self.fastest_ns = min(trial.iteration_ns, self.fastest_ns or trial.iteration_ns)
        self._tell(trial)
        return trial.iteration_ns

    def _tell(self, trial: Trial | None) -> None:
        if self._progress is not None:
            self._progress(trial)
        self._pause()

    def ruled_out(self, bound_ns: int) -> bool:
        """Return whether a plan that takes at least ``bound_ns`` can neither be the best nor tie
        with it.
        """
        return self.fastest_ns is not None and not ties(bound_ns, self.fastest_ns)

    def result(self, *, pruned: int = 0) -> SearchResult:
        """Return the result with the best trial. Raise InfeasiblePlanError if no plan can run."""
        if not self.trials:
            raise self._nothing_fits()
        covered = self.evaluations + pruned == len(self.plans)
        optimality: Optimality = "proven" if covered else "best_found"
        reasons = Counter(error.reason for error in self.record.failed.values())
        return SearchResult(
            best=choose_best(self.trials),
            trials=tuple(self.trials),
            optimality=optimality,
            evaluations=self.evaluations,
            space_size=len(self.plans),
            pruned=pruned,
            infeasible=dict(sorted(reasons.items())),
        )

    def _nothing_fits(self) -> InfeasiblePlanError:
        first = next(iter(self.record.failed.values()))
        more = " Others may: allow more --trials." if self.evaluations < len(self.plans) else ""
        return InfeasiblePlanError(
            f"None of the {self.evaluations} plans tried of {len(self.plans)} can run; the first "
            f"says: {first}{more}",
            reason=first.reason,
        )
