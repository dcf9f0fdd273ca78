"""The wire types of jobs of all kinds, and of their points and measurements."""

from __future__ import annotations

from typing import Any

from pydantic import RootModel

from api.generate import Wire, shown
from api.problems import Problem
from api.schemas import (
    CalibrateResultShown,
    LayoutsResultShown,
    ScaleResultShown,
    TuneResultShown,
    WhatIfPointShown,
    WhatIfResultShown,
)
from domino_tune.results.scale import ScalePoint
from domino_tune.results.validate import ValidateResult
from domino_tune.service.jobs.job import JobKind, JobState
from domino_tune.service.tasks.quantum import StopReason


class Progress(Wire):
    """How far a job is: ``done`` of ``total`` steps (null: unknown yet), and its present step.

    ``left``: most steps that are left. ``elapsed_s``: time since the job started; ``computed_s``:
    the part of it spent computing, at most ``limit_s``; ``eta_s``: estimated time left. null:
    unknown.
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
    """A job as lists and events show it; times are RFC 3339, UTC. ``label``: its owner's name for
    it.

    ``stopped_by``: why the search ends or ended early: ``user``, or ``time``.
    """

    id: str
    kind: JobKind
    state: JobState
    label: str | None
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
    """A tuning job; ``result`` is set when it is done."""

    result: TuneResultShown | None  # type: ignore[valid-type]


class Sweep(JobHead):
    """A sweep; ``result`` is set when it is done; its points become available one by one before."""

    result: WhatIfResultShown | None  # type: ignore[valid-type]


class LayoutSearch(JobHead):
    """A search of layouts; ``result`` is set when it is done."""

    result: LayoutsResultShown | None  # type: ignore[valid-type]


class Scale(JobHead):
    """A search of layouts at several numbers of GPUs; ``result`` is set when it is done; its points
    become available one by one before.
    """

    result: ScaleResultShown | None  # type: ignore[valid-type]


class CalibrationJob(JobHead):
    """A calibration; when it is done, ``result`` is set and the profile is in the library."""

    result: CalibrateResultShown | None  # type: ignore[valid-type]


class AnyJob(RootModel[Tune | Sweep | LayoutSearch | Scale | CalibrationJob]):
    """A job of any kind, with its result when it is done."""


class JobPage(Wire):
    """Jobs, newest first; ``next`` is the cursor of the next page, null on the last."""

    items: list[JobHead]
    next: str | None


class SweepPoint(Wire):
    """One point of a sweep, with its index in the sweep."""

    index: int
    point: WhatIfPointShown  # type: ignore[valid-type]


class SweepPointPage(Wire):
    """Points of a sweep by index; ``next`` is the cursor of the next page."""

    items: list[SweepPoint]
    next: str | None


class GpusPoint(Wire):
    """The best layout at one number of GPUs, with the index of that number."""

    index: int
    point: shown(ScalePoint)  # type: ignore[valid-type]


class GpusPointPage(Wire):
    """Points of a search at several numbers of GPUs, by index; ``next`` is the cursor of the next
    page.
    """

    items: list[GpusPoint]
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
    """A tune's plan as a cluster measured it, next to the prediction."""

    id: str
    created: str
    plans: list[Compared]
    result: shown(ValidateResult)  # type: ignore[valid-type]


class ValidationPage(Wire):
    """Measured results of a tune, oldest first; ``next`` is the cursor of the next page."""

    items: list[Validation]
    next: str | None
