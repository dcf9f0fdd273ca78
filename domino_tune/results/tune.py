"""Result of tune: the best plan, what frameworks run, the trials, the grid, contention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from domino_tune.base.tables import Table
from domino_tune.results import LabelledPlan, fields_json
from domino_tune.results.shown import Shown, frame, ms
from domino_tune.results.simulate import Simulated, SimulateResult

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True)
class RunsThere:
    """The best plan that fits and that a framework can run; it and its numbers are None if no such
    plan exists.

    ``runs_best``: whether that is the best plan of all. ``speedup``: over the same baseline.
    ``route`` and ``request``: where to ask for that plan, and the fields to change in the request;
    None if the baseline is the best there.
    """

    framework: str
    runs_best: bool
    plan: LabelledPlan | None
    iteration_ms: float | None
    speedup: float | None
    route: str | None
    request: dict[str, Any] | None


def frameworks_table(frameworks: Sequence[RunsThere]) -> Table:
    """Return one row per framework."""
    return Table(
        title="What frameworks run of it",
        columns=("framework", "runs the best plan", "best plan there", ">iteration", ">speedup"),
        rows=[
            (
                one.framework, "yes" if one.runs_best else "no",
                one.plan.label if one.plan else "none",
                "" if one.iteration_ms is None else ms(one.iteration_ms),
                "" if one.speedup is None else f"{one.speedup:.3f}x",
            )
            for one in frameworks
        ],
        narrow=("best plan there", "iteration"),
        below="best plan there",
    )  # fmt: skip


# Result of tune -----------------------------------------------------------------------------------
# The best plan, the trials, the grid of cuts, and the effect of contention.

WORTH: Final = ("baseline_ms", "no_comm_ms", "speedup")
"""What the best plan is worth: numbers of its simulation that JSON repeats beside it, which scripts
ask first."""


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A plan that was evaluated and is sure enough to fit (``fits_chance``)."""

    plan: LabelledPlan
    micro_batch_size: int
    iteration_ms: float
    peak_memory_gib: float
    fits_chance: float


@dataclass(frozen=True, kw_only=True)
class GridCell:
    """The fastest plan with ``row_slices``, and ``col_slices`` in both blocks.

    ``iteration_ms`` and ``plan`` are None if no such plan can run; ``reason`` then says why.
    """

    row_slices: int
    col_slices: int
    iteration_ms: float | None
    plan: LabelledPlan | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ContentionPoint:
    """The winner at one contention: the fastest plan, or the chosen plan if it ties.

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

    ``crossovers``: from each one's factor upwards, its winner is fastest; the first is the lowest
    factor. ``changes_above``: the lowest crossover above 1; ``changes_below``: the highest at or
    below 1; None if it does not exist.
    """

    points: tuple[ContentionPoint, ...]
    crossovers: tuple[ContentionPoint, ...]
    changes_above: float | None
    changes_below: float | None


@dataclass(frozen=True, kw_only=True)
class Tuned(Shown):
    """The best plan, simulated in full, and how it was found.

    ``optimality`` is ``proven`` if ``best`` is the fastest plan of the space under this profile
    (within the tie rule), else ``best_found``. ``infeasible`` counts the plans that cannot run by
    reason. ``stopped_by``: why the search ended early, ``user`` (who asked for the best so far) or
    ``time`` (the job's limit); None if it did not. ``frameworks``: which of them run the best plan,
    and the best plan that each of the others runs.
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
    contention: ContentionSensitivity | None
    seconds: float
    stopped_by: str | None = None
    frameworks: tuple[RunsThere, ...] = ()
    grid: tuple[GridCell, ...]
    trials: tuple[TrialResult, ...]

    def tables(self) -> Sequence[Table]:
        """Return the best plan, what frameworks run, the grid of cuts, and the closest rivals."""
        shown = (frameworks_table(self.frameworks),) if self.frameworks else ()
        return (*self.best.tables(), *shown, _grid(self), _rivals(self))

    def to_frame(self) -> DataFrame:
        """Return one row per trial, fastest first; ``chosen`` marks the best plan."""
        ranked = sorted(self.trials, key=lambda trial: trial.iteration_ms)
        rows = [
            {
                "chosen": _is_best(trial, self), "plan": trial.plan.label, **asdict(trial.plan),
                "micro_batch_size": trial.micro_batch_size, "iteration_ms": trial.iteration_ms,
                "speedup": self.best.baseline_ms / trial.iteration_ms,
                "peak_memory_gib": trial.peak_memory_gib, "fits_chance": trial.fits_chance,
            }
            for trial in ranked
        ]  # fmt: skip
        return frame(rows)

    def to_json(self) -> Any:
        """Return the fields, and what the best plan is worth beside it."""
        told = fields_json(self)
        best = told.pop("best")
        return {"best": best, **{name: best[name] for name in WORTH}, **told}


@dataclass(frozen=True, kw_only=True)
class TuneResult(Tuned):
    """The same on the machine that computed it."""

    best: SimulateResult


def _rivals(result: Tuned) -> Table:
    fastest = min(trial.iteration_ms for trial in result.trials)
    ranked = sorted(_shortlist(result), key=lambda trial: trial.iteration_ms)
    return Table(
        title="The chosen plan, and the fastest of each number of row slices",
        columns=(">row slices", "plan", ">micro-batch", ">iteration", ">above fastest", ">memory"),
        rows=[
            (
                str(trial.plan.row_slices), trial.plan.label, str(trial.micro_batch_size),
                ms(trial.iteration_ms), f"{trial.iteration_ms / fastest - 1:+.1%}",
                f"{trial.peak_memory_gib:.1f} GiB",
            )
            for trial in ranked
        ],
        marked=[i for i, trial in enumerate(ranked) if _is_best(trial, result)],
        notes=[_search_line(result), *_contention_lines(result.contention)],
        narrow=("plan", "micro-batch", "memory"),
        below="plan",
    )  # fmt: skip


def _grid(result: Tuned) -> Table:
    """Return the fastest plan of each cut, rows by columns."""
    columns = sorted({cell.col_slices for cell in result.grid})
    rows = sorted({cell.row_slices for cell in result.grid})
    cells = {(cell.row_slices, cell.col_slices): cell for cell in result.grid}
    return Table(
        title="Iteration time by cut: row slices down, column slices of both blocks across",
        columns=(">rows", *(f">{column} column{'s' * (column > 1)}" for column in columns)),
        rows=[(str(row), *(_cell_text(cells[row, column]) for column in columns)) for row in rows],
        marked=[i for i, row in enumerate(rows) if row == result.best.plan.row_slices],
    )


def _cell_text(cell: GridCell) -> str:
    return cell.reason if cell.iteration_ms is None else ms(cell.iteration_ms)


def _shortlist(result: Tuned) -> list[TrialResult]:
    chosen = [trial for trial in result.trials if _is_best(trial, result)]
    fastest: dict[int, TrialResult] = {}
    for trial in sorted(result.trials, key=lambda trial: trial.iteration_ms):
        fastest.setdefault(trial.plan.row_slices, trial)
    return [*chosen, *(trial for trial in fastest.values() if trial not in chosen)]


def _is_best(trial: TrialResult, result: Tuned) -> bool:
    same_batch = trial.micro_batch_size == result.best.workload.micro_batch_size
    return same_batch and trial.plan == result.best.plan


def found_words(result: Tuned) -> str:
    """Return among how many plans the best is the fastest, or ties with it, and how that
    was found."""
    if result.optimality != "proven":
        ended = stopped_words(result.stopped_by)
        return f"best of {result.evaluations:,} plans tried{ended}, others may be faster"
    tied = any(trial.iteration_ms < result.best.iteration_ms for trial in result.trials)
    fastest = "within 1 % of the fastest" if tied else "fastest"
    return f"{fastest} of {result.evaluations + result.pruned:,} plans under this profile"


def stopped_words(stopped_by: str | None) -> str:
    """Return why a search ended early, as the end of a phrase; nothing if it did not."""
    words = {"user": " until it was told to stop", "time": " until its time was spent"}
    return words[stopped_by] if stopped_by else ""


def _search_line(result: Tuned) -> str:
    infeasible = ", ".join(f"{count:,} {reason}" for reason, count in result.infeasible.items())
    return (
        f"{result.search}: {found_words(result)}; {result.space_size:,} combinations, "
        f"{result.evaluations:,} simulated, {result.pruned:,} ruled out by a bound, "
        f"not runnable: {infeasible or 'none'}; {result.seconds:.1f} s. Among plans within 1 % of "
        "the fastest, less memory and fewer slices win."
    )


def _contention_lines(found: ContentionSensitivity | None) -> list[str]:
    """Return at which contention the best plan changes, in words."""
    if found is None:
        return []
    if len(found.crossovers) == 1:
        ends = f"{_contention(found.points[0].factor)} to {_contention(found.points[-1].factor)}"
        return [f"The same plan wins from {ends}."]
    first, *later = found.crossovers
    parts = [f"With {_contention(first.factor)}, the winner is {first.winner.label}"]
    parts += [
        f"from {_contention(crossover.factor)} on, {crossover.winner.label}" for crossover in later
    ]
    return ["; ".join(parts) + "."]


def _contention(factor: float) -> str:
    return f"{factor:.3g} times the profile's slowdowns" if factor else "no contention"
