"""START HERE: one function per verb, request in, result out; CLI and API call these."""

from __future__ import annotations

from domino_tune import requests
from domino_tune.case import Chosen, plan_of, read_plan_file, resolve
from domino_tune.export import export_plan
from domino_tune.measured_tuning import check_simulated, tune_measured
from domino_tune.planfile import PlanFile, load_plan
from domino_tune.profile_services import (
    profiles_check,
    profiles_diff,
    profiles_import,
    profiles_list,
    profiles_show,
)
from domino_tune.profiling_service import profile
from domino_tune.results import (
    ExportResult,
    ModelsResult,
    PlanResult,
    SimulateResult,
    TuneResult,
    WhatIfResult,
)
from domino_tune.shelf import DISK, Shelf
from domino_tune.simulation import simulate_plan
from domino_tune.tuning import Progress, setups_to_tune, silent, tune_setups
from domino_tune.validation import validate
from domino_tune.whatif import ask, what_if
from simulator.presets import MODELS

__all__ = [
    "models", "plan_export", "plan_show", "profile", "profiles_check", "profiles_diff",
    "profiles_import", "profiles_list", "profiles_show", "simulate", "tune", "validate", "whatif",
]  # fmt: skip


def simulate(
    request: requests.SimulateRequest, *, plan_file: PlanFile | None = None, shelf: Shelf = DISK
) -> SimulateResult:
    """Predict one plan beside the baseline and the bound; a plan file's order is replayed.

    ``plan_file`` stands for the one that the request would name; ``shelf`` is where names are
    looked up.
    """
    plan_file = plan_file or read_plan_file(request)
    plan = plan_of(request, plan_file)
    setup = resolve(request, plan_file, shelf)
    order = plan_file.order if plan_file else None
    return simulate_plan(setup, Chosen.of(setup, plan, order))


def tune(
    request: requests.TuneRequest, progress: Progress = silent, *, shelf: Shelf = DISK
) -> TuneResult:
    """Find the best plan; ``progress`` is told what is being looked at.

    Names are looked up on ``shelf``; with objective ``measure`` always on disk, and the result is
    a MeasuredTuneResult.
    """
    if request.objective == "measure":
        return tune_measured(request, progress)
    check_simulated(request)
    setups = setups_to_tune(resolve(request, shelf=shelf), request.tune_also)
    return tune_setups(setups, request, progress)


def whatif(
    request: requests.WhatIfRequest,
    progress: Progress = silent,
    *,
    plan_file: PlanFile | None = None,
    shelf: Shelf = DISK,
) -> WhatIfResult:
    """Predict a plan, or with ``retune`` the best one, where machine or workload are changed.

    ``plan_file`` and ``shelf`` as in ``simulate``.
    """
    return what_if(ask(request, plan_file or read_plan_file(request), shelf), progress)


def plan_show(request: requests.PlanShowRequest) -> PlanResult:
    """What a plan file holds."""
    return PlanResult(plan_file=load_plan(request.file))


def plan_export(request: requests.PlanExportRequest) -> ExportResult:
    """Arguments and environment for a framework; a plan that it cannot run is refused."""
    return export_plan(load_plan(request.file), request.to)


def models(request: requests.ModelsRequest) -> ModelsResult:
    """The presets."""
    return ModelsResult(models=tuple(MODELS.values()))
