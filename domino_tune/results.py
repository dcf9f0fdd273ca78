"""What services answer: frozen results, each with its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Final

from domino_tune.case import Setup
from domino_tune.planfile import PlanFile, Predicted, ProfileRef
from domino_tune.store.check import SectionCheck
from domino_tune.store.profiles import ProfileSummary
from simulator.lines import LayerOrder
from simulator.plan import SlicePlan
from simulator.profile import Machine
from simulator.specs import ClusterSpec, ModelSpec, Workload
from simulator.timeline import Timeline


def plain(value: Any) -> Any:
    """``value`` as JSON: results by ``to_json``, dataclasses as objects, tuples as lists."""
    if isinstance(value, SlicePlan):
        return {"label": value.label, **asdict(value)}
    if hasattr(value, "to_json"):
        return value.to_json()
    if hasattr(value, "__dataclass_fields__"):
        shown = (item for item in fields(value) if item.metadata.get("json", True))
        return {item.name: plain(getattr(value, item.name)) for item in shown}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 6)
    return value


HIDDEN: Final = {"json": False}
"""Metadata of a field that pages and traces need and JSON does not show."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One plan's prediction; times in ms. ``comm_ms``: time with a collective in flight."""

    label: str
    iteration_ms: float
    compute_ms: float
    comm_ms: float
    exposed_comm_ms: float
    idle_ms: float
    hidden_comm_fraction: float
    peak_memory_gib: float
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Where the true time should lie, in ms."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A plan beside the baseline (Megatron) and the bound (no communication).

    ``speedup`` is baseline_ms / iteration_ms; ``confidence`` high, medium or low;
    ``confidence_shares`` the part of the time by where its look-ups came from.
    """

    iteration_ms: float
    baseline_ms: float
    no_comm_ms: float
    speedup: float
    comm_ms: float
    exposed_comm_ms: float
    hidden_comm_fraction: float
    peak_memory_gib: float
    interval_ms: Interval
    confidence: str
    confidence_shares: dict[str, float]
    warnings: tuple[str, ...]
    plan: SlicePlan
    profile: ProfileRef
    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    variants: dict[str, Variant]
    time_by_role_ms: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class SimulateResult(Simulated):
    """The same where it was computed: with what traces, pages and plan files are made from."""

    timelines: Mapping[str, Timeline] = field(metadata=HIDDEN, repr=False)
    order: LayerOrder = field(metadata=HIDDEN, repr=False)
    setup: Setup = field(metadata=HIDDEN, repr=False)

    @cached_property
    def plan_file(self) -> PlanFile:
        """The plan as a file holds it."""
        return PlanFile(
            model=self.model,
            workload=self.workload,
            cluster=self.cluster,
            profile=self.profile,
            plan=self.plan,
            order=self.order,
            predicted=Predicted(
                iteration_ms=self.iteration_ms,
                baseline_ms=self.baseline_ms,
                no_comm_ms=self.no_comm_ms,
                peak_memory_gib=self.peak_memory_gib,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class ModelsResult:
    """The presets."""

    models: tuple[ModelSpec, ...]

    def to_json(self) -> Any:
        """One object a model: its fields, and its number of parameters."""
        return [{**asdict(model), "parameters": model.parameters} for model in self.models]


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
                "plan": plain(best.plan),
                "iteration_ms": plain(best.iteration_ms),
                "micro_batch_size": best.workload.micro_batch_size,
                "grad_accumulation": best.workload.grad_accumulation,
            },
            **{
                name: plain(getattr(best, name))
                for name in ("baseline_ms", "no_comm_ms", "speedup")
            },
            **{
                item.name: plain(getattr(self, item.name))
                for item in fields(self)
                if item.name not in ("best", "trials", "grid")
            },
        }
        return {
            **answer,
            "simulation": plain(best),
            "grid": plain(self.grid),
            "trials": plain(self.trials),
        }


@dataclass(frozen=True, kw_only=True)
class TuneResult(Tuned):
    """The same where it was computed."""

    best: SimulateResult


POINT_FIELDS: Final = (
    "iteration_ms", "baseline_ms", "no_comm_ms", "speedup", "comm_ms", "exposed_comm_ms",
    "hidden_comm_fraction", "peak_memory_gib", "interval_ms", "confidence", "warnings", "plan",
    "workload", "cluster",
)  # fmt: skip
"""The numbers of a simulation that change from point to point of a what-if."""


@dataclass(frozen=True, kw_only=True)
class WhatIfPoint:
    """One changed machine or workload: its prediction, or why there is none.

    ``changes`` maps a key to the value asked for; ``value`` is the swept one.
    """

    changes: dict[str, str]
    value: str
    result: SimulateResult | None
    error: str = ""

    def to_json(self) -> Any:
        """The numbers of ``simulate --json`` that change from point to point."""
        head = {"changes": self.changes, "error": self.error or None}
        if self.result is None:
            return head
        return {**head, **{name: plain(getattr(self.result, name)) for name in POINT_FIELDS}}


@dataclass(frozen=True, kw_only=True)
class WhatIfResult:
    """The plan as things are (``base``), and at each point of the change or sweep."""

    base: WhatIfPoint
    points: tuple[WhatIfPoint, ...]
    sweep: str | None
    retuned: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """What a plan file holds."""

    plan_file: PlanFile

    def to_json(self) -> Any:
        """The file itself."""
        return self.plan_file.to_json()


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """``arguments`` for the framework's script, ``settings`` for its code, ``environment``.

    ``notes``: what the framework cannot be told this way.
    """

    to: str
    arguments: tuple[str, ...]
    settings: dict[str, bool]
    environment: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProfilesResult:
    """Bundled profiles and the user's."""

    profiles: tuple[ProfileSummary, ...]

    def to_json(self) -> Any:
        """One object a profile."""
        return plain(self.profiles)


@dataclass(frozen=True, kw_only=True)
class SectionResult:
    """A section of a profile: how many rows and fits, and where they come from."""

    section: str
    kind: str
    rows: int
    fits: int
    error: float | None
    source: str
    note: str


@dataclass(frozen=True, kw_only=True)
class ProfileResult:
    """A profile's machine and sections."""

    name: str
    content_id: str
    created: str
    machine: Machine
    sections: tuple[SectionResult, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """A profile that is whole, and each section's leave-out error."""

    profile: ProfileRef
    sections: tuple[SectionCheck, ...]


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """The profile that was written."""

    profile: ProfileRef
    path: str
    section: str
    rows: int
    note: str


@dataclass(frozen=True, kw_only=True)
class DiffResult:
    """(place, value in the first, value in the second) of everything that differs."""

    first: ProfileRef
    second: ProfileRef
    differences: tuple[tuple[str, str, str], ...]
