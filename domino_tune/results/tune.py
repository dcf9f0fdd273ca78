"""Result of tune: the best plan, the trials, the grid of cuts, what contention changes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from domino_tune.results.json_form import LabelledPlan, to_json
from domino_tune.results.simulate import Simulated, SimulateResult


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A plan that was evaluated and fits into memory."""

    plan: LabelledPlan
    micro_batch_size: int
    iteration_ms: float
    peak_memory_gib: float


@dataclass(frozen=True, kw_only=True)
class GridCell:
    """The fastest plan with ``row_slices``, and ``col_slices`` in both blocks.

    ``iteration_ms`` and ``plan`` are None where no such plan can run; ``reason`` then says why.
    """

    row_slices: int
    col_slices: int
    iteration_ms: float | None
    plan: LabelledPlan | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ContentionPoint:
    """The winner at one contention: the fastest plan, or the chosen plan where it ties.

    ``factor`` scales each slowdown's excess over 1.
    """

    factor: float
    chosen_ms: float
    winner: LabelledPlan
    winner_ms: float
    baseline_ms: float


@dataclass(frozen=True, kw_only=True)
class ContentionSensitivity:
    """How the choice of the plan depends on contention.

    ``crossovers``: from each one's factor on, its winner is fastest; the first is the lowest
    factor. ``changes_above``: the lowest crossover above 1; ``changes_below``: the highest at or
    below 1; None where there is none.
    """

    points: tuple[ContentionPoint, ...]
    crossovers: tuple[ContentionPoint, ...]
    changes_above: float | None
    changes_below: float | None


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best plan, simulated in full, and how it was found.

    ``optimality`` is proven or best_found. ``infeasible`` counts the plans that cannot run by
    reason.
    """

    best: Simulated
    search: str
    seed: int
    target: str | None
    optimality: str
    space_size: int
    evaluations: int
    pruned: int
    infeasible: dict[str, int]
    trials: tuple[TrialResult, ...]
    grid: tuple[GridCell, ...]
    contention: ContentionSensitivity | None
    seconds: float

    def to_json(self) -> Any:
        """Return the best plan first and the trials, which are long, last."""
        best = self.best
        answer = {
            "best": {
                "plan": to_json(best.plan),
                "iteration_ms": to_json(best.iteration_ms),
                "micro_batch_size": best.workload.micro_batch_size,
                "grad_accumulation": best.workload.grad_accumulation,
            },
            **{
                name: to_json(getattr(best, name))
                for name in ("baseline_ms", "no_comm_ms", "speedup")
            },
            **{
                item.name: to_json(getattr(self, item.name))
                for item in fields(self)
                if item.name not in ("best", "trials", "grid")
            },
        }
        return {
            **answer,
            "simulation": to_json(best),
            "grid": to_json(self.grid),
            "trials": to_json(self.trials),
        }


@dataclass(frozen=True, kw_only=True)
class TuneResult(Tuned):
    """The same where it was computed."""

    best: SimulateResult
