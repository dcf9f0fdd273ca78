"""The wire types: bodies of requests and contents of answers, without logic; those of jobs are in
``api.job_schemas``.

Bodies and results are generated from ``domino_tune.requests`` and the result classes; this module
writes out only what the service adds.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Union

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, create_model

from api.generate import AnswerModel, Slug, WireModel, shown, shown_fields, wire_body
from api.problems import JOB_ID, Problem
from domino_tune.requests import (
    LayoutRequest,
    ScaleRequest,
    SimulateRequest,
    TuneRequest,
    WhatIfRequest,
)
from domino_tune.requests.fields import NEEDED, CutFields
from domino_tune.requests.options import MOST_ENTRIES, Text
from domino_tune.requests.service import JobKind, JobState
from domino_tune.results.files import ExportResult
from domino_tune.results.layouts import Layouts, ScaleResult
from domino_tune.results.measured import ValidateResult
from domino_tune.results.profile import CalibrateResult
from domino_tune.results.simulate import Prediction, SimulateResult
from domino_tune.results.tune import WORTH
from domino_tune.results.tune import TuneResult as TuneAnswer
from domino_tune.results.whatif import WhatIf
from domino_tune.service.work import StopReason
from domino_tune.store.formats.run_table import LEAST_MS, LONGEST_NOTE, MOST_MS
from domino_tune.store.plans import Predicted, ProfileRef
from domino_tune.store.profiles import ProfileSummary
from domino_tune.verbs.calibrate import LEAST_RUNS
from simulator.specs import ClusterSpec, ModelSpec, Workload

# Bodies ----------------------------------------------------------------------------------------

LONGEST_LABEL: Final = 100
OF_LAYOUTS: Final = ("model", "profile", "seq_length", "global_batch_size")
TuneBody = wire_body("TuneBody", TuneRequest, required=NEEDED)
LayoutBody = wire_body("LayoutBody", LayoutRequest, required=(*OF_LAYOUTS, "gpus"))
ScaleBody = wire_body("ScaleBody", ScaleRequest, required=OF_LAYOUTS)
SimulateBody = wire_body("SimulateBody", SimulateRequest)
SweepBody = wire_body("SweepBody", WhatIfRequest)
WhatIfBody = wire_body(
    "WhatIfBody", WhatIfRequest, sweep=(None, None), retune=(Literal[False], False)
)
"""What takes longer is a job."""


class ValidateBody(WireModel):
    """What `validate --json` printed of a tune's plan."""

    of: Annotated[str, Field(pattern=JOB_ID, description="The tune.")]
    result: shown(ValidateResult)  # type: ignore[valid-type]


MeasuredRunBody = create_model(
    "MeasuredRun",
    __base__=wire_body(
        "MeasuredRun",
        CutFields,
        required=[name for name in NEEDED if name != "profile"],
        profile=(None, None),
    ),
    __doc__="A measured iteration: the fields of a simulation, of strategy `megatron` where none "
    "is given, and its time.",
    label=(Text | None, Field(default=None, description="A name of the run, for people.")),
    measured_ms=(
        Annotated[float, Field(ge=LEAST_MS, le=MOST_MS)],
        Field(description="Median time of an iteration, in ms."),
    ),
    rounding_ms=(
        Annotated[float, Field(ge=0, le=MOST_MS)],
        Field(default=0.0, description="By what that time may be rounded, in ms."),
    ),
    note=(
        Annotated[str, Field(min_length=1, max_length=LONGEST_NOTE)] | None,
        Field(default=None, description="What comes with the answer, for people."),
    ),
)


class CalibrateBody(WireModel):
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


def _label(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("Give words of printed characters in one line, or null for no label.")
    return text


BODIES: Final[dict[JobKind, type[WireModel]]] = {
    "tune": TuneBody,
    "layout": LayoutBody,
    "scale": ScaleBody,
    "whatif": SweepBody,
    "calibrate": CalibrateBody,
    "validate": ValidateBody,
}
"""What asks for a job of each kind, beside its ``kind``."""


def _job_body(kind: JobKind, body: type[WireModel]) -> type[WireModel]:
    """Return the body with its kind, by which it is called."""
    named: Any = Literal[kind]
    name = f"{kind.capitalize()}Job"
    return create_model(name, __base__=body, __doc__=body.__doc__, kind=(named, ...))


JOB_BODIES: Final[dict[JobKind, type[WireModel]]] = {
    kind: _job_body(kind, body) for kind, body in BODIES.items()
}
_Any: Any = Annotated[Union[tuple(JOB_BODIES.values())], Field(discriminator="kind")]  # noqa: UP007


class JobBody(RootModel[_Any]):
    """What asks for a job: its kind, and the fields of that kind."""


class LabelBody(WireModel):
    """What a job is called; null: nothing any more."""

    label: (
        Annotated[str, Field(min_length=1, max_length=LONGEST_LABEL), AfterValidator(_label)] | None
    )


# Results ---------------------------------------------------------------------------------------


def _answer(name: str, says: str | None, **fields: Any) -> type[AnswerModel]:
    return create_model(name, __base__=AnswerModel, __doc__=says, **fields)


SimulateResultShown = shown(SimulateResult)
_POINT: Final[dict[str, Any]] = {
    "changes": (dict[str, str], ...),
    "error": (str | None, ...),
    **{name: (kind, Field(default=None)) for name, (kind, _) in shown_fields(Prediction).items()},
}
WhatIfPointShown = create_model(
    "WhatIfPoint",
    __base__=WireModel,
    __doc__="One changed machine or workload: its prediction, or in `error` why there is none.",
    **_POINT,
)
WhatIfResultShown = _answer(
    "WhatIfResult",
    WhatIf.__doc__,
    **shown_fields(WhatIf, but=("base", "points")),
    base=(WhatIfPointShown, ...),
    points=(list[WhatIfPointShown], ...),  # type: ignore[valid-type]
)
TuneResultShown = _answer(
    "TuneResult",
    TuneAnswer.__doc__,
    best=(SimulateResultShown, ...),
    **shown_fields(SimulateResult, WORTH),
    **shown_fields(TuneAnswer, but=("best", "seconds")),
)
ScaleResultShown = shown(ScaleResult, but=("seconds",))
LayoutsResultShown = _answer(
    "LayoutsResult",
    Layouts.__doc__,
    best=(SimulateResultShown, ...),
    **shown_fields(Layouts, but=("best", "seconds")),
)
CalibrateResultShown = shown(CalibrateResult, but=("path",))
PlanFileShown = _answer(
    "PlanFile",
    "A plan with all that it was made for; give it back as `plan`, or save it to a file.",
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

# Profiles and models ---------------------------------------------------------------------------


Summary = shown(ProfileSummary)


class ProfilePage(WireModel):
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


class Imported(WireModel):
    """The profile that an import made, what was added to which section, and remarks; `replaced`
    rows took the place of one of the same signature."""

    profile: shown(ProfileRef)  # type: ignore[valid-type]
    section: str
    rows: int
    replaced: int
    note: str
    warnings: list[str]


class Model(WireModel):
    """A model's shape under its name; ``notes`` say how a config was read."""

    name: Slug
    origin: Literal["bundled", "library"]
    parameters: int
    model: shown(ModelSpec)  # type: ignore[valid-type]
    notes: list[str]


class ModelPage(WireModel):
    """Models by name, presets first."""

    items: list[Model]
    next: str | None


# Jobs ------------------------------------------------------------------------------------------


class Progress(WireModel):
    """How far a job is: ``done`` of ``total`` steps (null: unknown yet), and its present step.

    ``left``: most steps that are left. ``elapsed_s``: time since the job started; ``computed_s``:
    the part of it that this attempt has taken, at most ``limit_s``; ``eta_s``: estimated time left.
    null: unknown.
    """

    done: int
    total: int | None
    text: str
    left: int | None
    computed_s: float
    elapsed_s: float | None
    eta_s: float | None
    limit_s: float


class JobHead(WireModel):
    """A job as lists and events show it; times are RFC 3339, UTC. ``label``: its owner's name for
    it.

    ``stopped_by``: why the search ends or ended early: ``user``, or ``time``. ``attempts``: how
    often it began; a job whose process died begins again. ``links``: paths; ``files`` is a template
    for the name of a file.
    """

    id: str
    kind: JobKind
    state: JobState
    label: str | None
    request: dict[str, Any]
    attempts: int
    stopped_by: StopReason | None
    progress: Progress
    best: dict[str, Any] | None
    error: Problem | None
    created: str
    started: str | None
    finished: str | None
    links: dict[str, str]


class Compared(WireModel):
    """One plan, predicted and measured; ``error`` is predicted over measured, less 1."""

    name: str
    label: str
    tuned: bool
    predicted_ms: float
    measured_ms: float | None
    error: float | None


class ValidationShown(WireModel):
    """A tune's plan as a cluster measured it, next to the prediction."""

    plans: list[Compared]
    measured: shown(ValidateResult)  # type: ignore[valid-type]


RESULTS: Final[dict[JobKind, type[BaseModel]]] = {
    "tune": TuneResultShown,
    "layout": LayoutsResultShown,
    "scale": ScaleResultShown,
    "whatif": WhatIfResultShown,
    "calibrate": CalibrateResultShown,
    "validate": ValidationShown,
}


class Job(JobHead):
    """A job; ``result`` is set when it is done."""

    result: Union[(*RESULTS.values(), type(None))]  # type: ignore[valid-type]


class JobPage(WireModel):
    """Jobs, newest first; ``next`` is the cursor of the next page, null on the last."""

    items: list[JobHead]
    next: str | None


# Files of a search -----------------------------------------------------------------------------

Export = _answer(
    "Export",
    "What makes a framework run a plan; `text` is a file for a shell to source.",
    **shown_fields(ExportResult),
    text=(str, ...),
)


class PointPage(WireModel):
    """Points of a job so far, by index."""

    items: list[dict[str, Any]]


class Trace(BaseModel):
    """A Chrome trace."""

    model_config = ConfigDict(extra="allow")
    traceEvents: list[dict[str, Any]]


class JobFile(RootModel[PlanFileShown | Export | Trace | ProfileFile | PointPage]):  # type: ignore[valid-type]
    """A file of a job: a plan file, or with `to` what makes a framework run it; a Chrome trace; a
    profile; points."""
