"""START HERE: one function per verb, request in, result out; CLI and API call these."""

from __future__ import annotations

from domino_tune import requests
from domino_tune.case import Chosen, plan_of, read_plan_file, resolve
from domino_tune.results import ModelsResult, SimulateResult, TuneResult
from domino_tune.simulation import simulate_plan
from domino_tune.tuning import Progress, setups_to_tune, silent, tune_setups
from simulator.presets import MODELS


def simulate(request: requests.SimulateRequest) -> SimulateResult:
    """Predict one plan beside the baseline and the bound; a plan file's order is replayed."""
    plan_file = read_plan_file(request)
    plan = plan_of(request, plan_file)
    setup = resolve(request, plan_file)
    order = plan_file.order if plan_file else None
    return simulate_plan(setup, Chosen.of(setup, plan, order))


def tune(request: requests.TuneRequest, progress: Progress = silent) -> TuneResult:
    """Find the best plan; ``progress`` is told what is being looked at."""
    setups = setups_to_tune(resolve(request), request.tune_also)
    return tune_setups(setups, request, progress)


def models(request: requests.ModelsRequest) -> ModelsResult:
    """The presets."""
    return ModelsResult(models=tuple(MODELS.values()))
