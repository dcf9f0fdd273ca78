"""What tune answers: the best plan, the trials, the map of cuts, what contention changes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from domino_tune.results.json_form import to_json
from domino_tune.results.simulate import Simulated, SimulateResult
from simulator.plan import SlicePlan


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One plan that was evaluated and fits."""

    plan: SlicePlan
    micro_batch_size: int
    iteration_ms: float
    peak_memory_gib: float


@dataclass(frozen=True, kw_only=True)
class GridCell:
    """The fastest plan with ``row_slices``, and ``col_slices`` in both blocks.

    ``iteration_ms`` and ``plan`` are None where none can run; ``reason`` then says why.
    """

    row_slices: int
    col_slices: int
    iteration_ms: float | None
    plan: SlicePlan | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ContentionPoint:
    """Who wins when every slowdown's excess is ``factor`` times the profile's."""

    factor: float
    chosen_ms: float
    winner: SlicePlan
    winner_ms: float
    baseline_ms: float


@dataclass(frozen=True, kw_only=True)
class ContentionSensitivity:
    """``turns``: from each one's factor on, its winner is best; the first is the lowest factor.

    ``changes_above``, ``changes_below``: the factor at which another plan than at 1 wins, if any.
    """

    points: tuple[ContentionPoint, ...]
    turns: tuple[ContentionPoint, ...]
    changes_above: float | None
    changes_below: float | None


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best plan, simulated in full, and how it was found.

    ``optimality`` proven or best_found; ``infeasible`` counts by reason what cannot run.
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
        """The answer first; ``trials`` last, since it is long."""
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
