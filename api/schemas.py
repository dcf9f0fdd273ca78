"""The wire types: bodies of requests and contents of answers, without logic.

Bodies and results are generated from ``domino_tune.requests`` and the result classes; this module
writes out only what the service adds.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from api.generate import (
    LONGEST_TEXT,
    MOST_ENTRIES,
    Slug,
    Told,
    Wire,
    shown,
    shown_fields,
    wire_body,
)
from api.problems import Problem
from domino_tune.requests import SimulateRequest, TuneRequest, WhatIfRequest
from domino_tune.requests.fields import NEEDED
from domino_tune.requests.verbs import LAYOUT_FIELDS, LAYOUTS_NOT_SERVED, NOT_SERVED
from domino_tune.results import CalibrateResult, ExportResult, SimulateResult, WhatIfResult
from domino_tune.results import TuneResult as TuneAnswer
from domino_tune.results.layouts import Layouts
from domino_tune.results.tune import BEST, SPEEDUPS, GridCell, TrialResult
from domino_tune.results.validate import ValidateResult
from domino_tune.results.whatif import POINT_FIELDS
from domino_tune.service.jobs.job import JobKind, JobState
from domino_tune.service.tasks.quantum import StopReason
from domino_tune.store.formats.run_table import LEAST_MS, MOST_MS
from domino_tune.store.plans import Predicted, ProfileRef
from domino_tune.store.profiles import ProfileSummary
from domino_tune.verbs.calibrate import LEAST_RUNS
from simulator.plan import SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload

# Bodies ----------------------------------------------------------------------------------------

Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]

SLOW: Final = frozenset({"retune", "sweep"})
"""Fields of a what-if that make it a sweep, which is a job."""

TuneBody = wire_body("TuneBody", TuneRequest, without=NOT_SERVED, required=NEEDED)
LayoutBody = wire_body(
    "LayoutBody",
    TuneRequest,
    without=LAYOUTS_NOT_SERVED,
    required=("model", "profile", "seq_length", *LAYOUT_FIELDS),
    doc="Find the best layouts of so many GPUs for a global batch. Of tp, pp, vpp, cp, dp, "
    "micro_batch_size and recompute those that are given stay; the others are searched.",
)
SimulateBody = wire_body("SimulateBody", SimulateRequest)
WhatIfBody = wire_body("WhatIfBody", WhatIfRequest, without=SLOW)
SweepBody = wire_body("SweepBody", WhatIfRequest)
ValidationBody = create_model(
    "ValidationBody",
    __base__=shown(ValidateResult),
    __doc__="What `validate --json` printed of a tune's plan.",
)

MeasuredRunBody = create_model(
    "MeasuredRun",
    __base__=wire_body(
        "MeasuredRun",
        SimulateRequest,
        without=("plan", "profile"),
        required=[name for name in NEEDED if name != "profile"],
    ),
    __doc__="A measured iteration: the fields of a simulation, of strategy `megatron` where none "
    "is given, and its time.",
    label=(Text | None, Field(default=None, description="A name of the run, for people.")),
    measured_ms=(
        Annotated[float, Field(ge=LEAST_MS, le=MOST_MS)],
        Field(description="Median time of an iteration, in ms."),
    ),
)


class CalibrationBody(Wire):
    """Fit few physical factors of a profile to measured iterations of your own jobs."""

    profile: Slug = Field(description="Profile to start from, by name.")
    name: Slug = Field(
        description="Name of the new profile; one that is calibrated already is replaced."
    )
    runs: (
        Annotated[list[MeasuredRunBody], Field(min_length=LEAST_RUNS, max_length=MOST_ENTRIES)]  # type: ignore[valid-type]
        | Annotated[str, Field(min_length=1)]
    ) = Field(
        description="Measured runs of layouts that differ; as a text, a CSV table with the same "
        "names as columns."
    )


# Results ---------------------------------------------------------------------------------------

SimulateResultShown = shown(SimulateResult)
_POINT: Final[dict[str, Any]] = {
    "changes": (dict[str, str], ...),
    "error": (str | None, ...),
    **{
        name: (kind, Field(default=None))
        for name, (kind, _) in shown_fields(SimulateResult, POINT_FIELDS).items()
    },
}
WhatIfPointShown = create_model(
    "WhatIfPoint",
    __base__=Wire,
    __doc__="One changed machine or workload: its prediction, or in `error` why there is none.",
    **_POINT,
)
WhatIfResultShown = create_model(
    "WhatIfResult",
    __base__=Told,
    __doc__=WhatIfResult.__doc__,
    **{
        **shown_fields(WhatIfResult, ("sweep", "retuned", "notes", "stopped_by")),
        "base": (WhatIfPointShown, ...),
        "points": (list[WhatIfPointShown], ...),  # type: ignore[valid-type]
    },
)
BestPlan = create_model(
    "BestPlan",
    __base__=Told,
    __doc__="The plan to use, its numbers, and the batch that it is for.",
    **{
        "plan": (shown(SlicePlan), ...),
        **shown_fields(SimulateResult, BEST),
        "micro_batch_size": (int, ...),
        "grad_accumulation": (int, ...),
    },
)
TuneResultShown = create_model(
    "TuneResult",
    __base__=Told,
    __doc__=TuneAnswer.__doc__,
    **{
        "best": (BestPlan, ...),
        **shown_fields(SimulateResult, SPEEDUPS),
        **{
            name: item
            for name, item in shown_fields(TuneAnswer).items()
            if name not in ("best", "grid", "trials", "seconds")
        },
        "simulation": (SimulateResultShown, ...),
        "grid": (list[shown(GridCell)], ...),  # type: ignore[misc]
        "trials": (list[shown(TrialResult)], ...),  # type: ignore[misc]
    },
)
LayoutsResultShown = create_model(
    "LayoutsResult",
    __base__=Told,
    __doc__=Layouts.__doc__,
    **{
        **{
            name: item
            for name, item in shown_fields(Layouts).items()
            if name not in ("best", "seconds")
        },
        "simulation": (SimulateResultShown, ...),
    },
)
CalibrateResultShown = create_model(
    "CalibrateResult",
    __base__=Told,
    __doc__=CalibrateResult.__doc__,
    **{name: item for name, item in shown_fields(CalibrateResult).items() if name != "path"},
)
PlanFileShown = create_model(
    "PlanFile",
    __base__=Told,
    __doc__="A plan with all that it was made for; give it back as `plan`, or save it to a file.",
    schema_=(Literal[4], Field(alias="schema")),
    checksum=(str, ...),
    model=(shown(ModelSpec), ...),
    workload=(shown(Workload), ...),
    cluster=(shown(ClusterSpec), ...),
    profile=(shown(ProfileRef), ...),
    plan=(dict[str, Any], ...),
    order=(dict[str, Any], ...),
    predicted=(shown(Predicted), ...),
)

# Jobs ------------------------------------------------------------------------------------------


class Progress(Wire):
    """How far a job is: ``done`` of ``total`` (null: unknown yet), and what it looks at.

    ``left``: at most so many are left. ``elapsed_s``: since it started; ``computed_s``: of them it
    computed, at most ``limit_s``; ``eta_s``: about so many more. null: unknown.
    """

    done: int
    total: int | None
    text: str
    left: int | None
    computed_s: float
    elapsed_s: float | None
    eta_s: float | None
    limit_s: float


class JobHead(Wire):
    """What lists and events tell of a job; times are RFC 3339, UTC.

    ``stopped_by``: why it ends, or has ended, before all was searched: ``user``, or ``time``.
    """

    id: str
    kind: JobKind
    state: JobState
    request: dict[str, Any]
    stopped_by: StopReason | None
    progress: Progress
    best: dict[str, Any] | None
    error: Problem | None
    created: str
    started: str | None
    finished: str | None
    links: dict[str, str]


class Tune(JobHead):
    """A tuning job; ``result`` is there when it is done."""

    result: TuneResultShown | None  # type: ignore[valid-type]


class Sweep(JobHead):
    """A sweep; ``result`` is there when it is done, its points are there one by one before."""

    result: WhatIfResultShown | None  # type: ignore[valid-type]


class LayoutSearch(JobHead):
    """A search of layouts; ``result`` is there when it is done."""

    result: LayoutsResultShown | None  # type: ignore[valid-type]


class CalibrationJob(JobHead):
    """A calibration; ``result`` is there when it is done, and so is the profile in the library."""

    result: CalibrateResultShown | None  # type: ignore[valid-type]


class JobPage(Wire):
    """Jobs, newest first; ``next`` is the cursor of the page after, null on the last."""

    items: list[JobHead]
    next: str | None


class SweepPoint(Wire):
    """One point of a sweep, by its place in it."""

    index: int
    point: WhatIfPointShown  # type: ignore[valid-type]


class SweepPointPage(Wire):
    """Points of a sweep by their place; ``next`` is the cursor of the page after."""

    items: list[SweepPoint]
    next: str | None


class Compared(Wire):
    """One plan, predicted and measured; ``error`` is predicted over measured, less 1."""

    name: str
    label: str
    tuned: bool
    predicted_ms: float
    measured_ms: float | None
    error: float | None


class Validation(Wire):
    """A plan of a tune as a cluster measured it, beside the prediction."""

    id: str
    created: str
    plans: list[Compared]
    result: shown(ValidateResult)  # type: ignore[valid-type]


class ValidationPage(Wire):
    """Measured results of a tune, oldest first; ``next`` is the cursor of the page after."""

    items: list[Validation]
    next: str | None


# Profiles and models ---------------------------------------------------------------------------


Summary = shown(ProfileSummary)


class ProfilePage(Wire):
    """Profiles by name, those that come with the program included."""

    items: list[Summary]  # type: ignore[valid-type]
    next: str | None


class ProfileFile(BaseModel):
    """A profile's file, as profiles/schema.json has it; `checksum` is the id of its content."""

    model_config = ConfigDict(extra="allow")
    checksum: str
    name: str
    created: str
    machine: dict[str, Any]


class Imported(Wire):
    """The profile that an import made, what was added to which section, and remarks; `replaced`
    rows took the place of one of the same signature."""

    profile: shown(ProfileRef)  # type: ignore[valid-type]
    section: str
    rows: int
    replaced: int
    note: str
    warnings: list[str]


class Model(Wire):
    """A model's shape under its name; ``notes`` say how a config was read."""

    name: Slug
    origin: Literal["bundled", "library"]
    parameters: int
    model: shown(ModelSpec)  # type: ignore[valid-type]
    notes: list[str]


class ModelPage(Wire):
    """Models by name, presets first."""

    items: list[Model]
    next: str | None


# Files of a search -----------------------------------------------------------------------------

Export = create_model(
    "Export",
    __base__=Told,
    __doc__="What makes a framework run a plan; `text` is a file for a shell to source.",
    **shown_fields(ExportResult),
    text=(str, ...),
)


class PlanAnswer(RootModel[PlanFileShown | Export]):  # type: ignore[valid-type]
    """A plan file, or with `to` what makes a framework run it."""


class Trace(BaseModel):
    """A Chrome trace."""

    model_config = ConfigDict(extra="allow")
    traceEvents: list[dict[str, Any]]
