"""What a command does: call its service, write what was asked for, print the result.

Imports stand inside the functions: ``--help`` must not pay for them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from domino_tune import requests
from domino_tune.outputs import (
    FileOutputs,
    JsonOutputs,
    Outputs,
    PictureOutputs,
    ReportOutputs,
    TuneOutputs,
    ValidateOutputs,
)

if TYPE_CHECKING:
    from domino_tune.results import SimulateResult


def simulate(request: requests.SimulateRequest, outputs: PictureOutputs) -> None:
    """Predict one plan."""
    from domino_tune import reporting, services, show

    _check_places(outputs)
    result = services.simulate(request)
    _write_trace(outputs.trace, result)
    if outputs.report:
        reporting.report_simulation(outputs.report, request, result)
    answer(result, outputs.json, show.simulate)


def tune(request: requests.TuneRequest, outputs: TuneOutputs) -> None:
    """Find the best plan, here or at a server."""
    _check_places(outputs)
    if outputs.server:
        from domino_tune import service_actions, show

        result = service_actions.tune_there(request, outputs, outputs.server)
        answer(result, outputs.json, show.tune)
    else:
        _tune_here(request, outputs)


def _tune_here(request: requests.TuneRequest, outputs: TuneOutputs) -> None:
    """When interrupted between measurements, say how to go on."""
    from domino_tune import reporting, services, show, show_measured
    from domino_tune.measured_results import MeasuredTuneResult
    from domino_tune.measured_tuning import TuningInterrupted
    from domino_tune.planfile import save_plan

    try:
        measures = request.objective == "measure"
        with show.still_progress() if measures else show.progress() as progress:
            result = services.tune(request, progress)
    except TuningInterrupted as interrupt:
        show_measured.interrupted(str(interrupt))
        raise
    if outputs.out:
        save_plan(result.best.plan_file, outputs.out)
    _write_trace(outputs.trace, result.best)
    if outputs.report:
        reporting.report_tuning(outputs.report, request, outputs, result)
    measured = isinstance(result, MeasuredTuneResult)
    answer(result, outputs.json, show_measured.tune if measured else show.tune)


def whatif(request: requests.WhatIfRequest, outputs: ReportOutputs) -> None:
    """Predict a plan where machine or workload are changed."""
    from domino_tune import reporting, services, show

    _check_places(outputs)
    with show.progress() as progress:
        result = services.whatif(request, progress)
    if outputs.report:
        reporting.report_whatif(outputs.report, request, result)
    answer(result, outputs.json, show.whatif)


def validate(request: requests.ValidateRequest, outputs: ValidateOutputs) -> None:
    """Run plans for real; what is wrong with them is raised when all has been shown."""
    from domino_tune import services, show, show_validation
    from domino_tune.formats.chrome_trace import write_trace
    from domino_tune.validation import check_result

    _check_places(outputs)
    if outputs.report_to:
        from domino_tune import sending

        sending.check_destination(outputs.report_to, outputs.token_file)
    with show.still_progress() as progress:
        result = services.validate(request, progress)
    if outputs.trace:
        write_trace(outputs.trace, result.timelines)
    answer(result, outputs.json, show_validation.validation)
    try:
        if outputs.report_to:
            from domino_tune import sending

            sending.send_result(result, outputs.report_to, outputs.token_file)
    finally:
        check_result(result)


def profile(request: requests.ProfileRequest, outputs: JsonOutputs) -> None:
    """Measure this machine; when interrupted, say how to go on."""
    from domino_tune import profiling_service, services, show_profiling

    try:
        with show_profiling.progress() as progress:
            result = services.profile(request, progress)
    except KeyboardInterrupt:
        path = profiling_service.profile_path(request.name)
        show_profiling.interrupted(path, profiling_service.resume_command(request))
        raise
    answer(result, outputs.json, show_profiling.profile)


def plan_show(request: requests.PlanShowRequest, outputs: JsonOutputs) -> None:
    """Show what a plan file holds."""
    from domino_tune import services, show

    answer(services.plan_show(request), outputs.json, show.plan)


def plan_export(request: requests.PlanExportRequest, outputs: FileOutputs) -> None:
    """Arguments and environment for a framework, as a file for a shell to source or as JSON."""
    from domino_tune import services
    from domino_tune.export import export_text
    from domino_tune.results import plain
    from domino_tune.store.files import write_whole

    _check_places(outputs)
    result = services.plan_export(request)
    text = _json_text(plain(result)) if outputs.json else export_text(result)
    if outputs.out:
        write_whole(outputs.out, text)
    else:
        sys.stdout.write(text)


def models(request: requests.ModelsRequest, outputs: JsonOutputs) -> None:
    """List the presets."""
    from domino_tune import services, show

    answer(services.models(request), outputs.json, show.models)


def profiles_list(request: requests.ProfilesListRequest, outputs: JsonOutputs) -> None:
    """List profiles."""
    from domino_tune import services, show_profiles

    answer(services.profiles_list(request), outputs.json, show_profiles.listing)


def profiles_show(request: requests.ProfilesShowRequest, outputs: JsonOutputs) -> None:
    """Show one profile."""
    from domino_tune import services, show_profiles

    answer(services.profiles_show(request), outputs.json, show_profiles.profile)


def profiles_check(request: requests.ProfilesCheckRequest, outputs: JsonOutputs) -> None:
    """Check one profile."""
    from domino_tune import services, show_profiles

    answer(services.profiles_check(request), outputs.json, show_profiles.check)


def profiles_import(request: requests.ProfilesImportRequest, outputs: JsonOutputs) -> None:
    """Import a table."""
    from domino_tune import services, show_profiles

    answer(services.profiles_import(request), outputs.json, show_profiles.imported)


def profiles_diff(request: requests.ProfilesDiffRequest, outputs: JsonOutputs) -> None:
    """Compare two profiles."""
    from domino_tune import services, show_profiles

    answer(services.profiles_diff(request), outputs.json, show_profiles.diff)


def _check_places(outputs: Outputs) -> None:
    """Refuse a place that cannot be written before, rather than after, a long computation."""
    from domino_tune.store.files import check_writable

    for path in outputs.files().values():
        check_writable(path)


def _write_trace(path: str | None, result: SimulateResult) -> None:
    if path is not None:
        from domino_tune.formats.chrome_trace import write_trace

        write_trace(path, result.timelines)


def answer(result: Any, as_json: bool, table: Callable[[Any], None]) -> None:
    """Print the result as JSON or as its table."""
    from domino_tune.results import plain

    if as_json:
        sys.stdout.write(_json_text(plain(result)))
    else:
        table(result)


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
