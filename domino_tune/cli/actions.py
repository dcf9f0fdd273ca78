"""Actions of the commands: call the verb, write the requested files, print the result.

Imports are inside the functions, so that ``--help`` stays fast.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from domino_tune import requests
from domino_tune.cli.output import answer, json_text, tell_written
from domino_tune.requests.outputs import (
    FileOutputs,
    JsonOutputs,
    Outputs,
    PlanOutputs,
    ReportOutputs,
    ScaleOutputs,
    SearchOutputs,
    ServerOutputs,
    ValidateOutputs,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from domino_tune.base.progress import Progress
    from domino_tune.results.simulate import SimulateResult


def simulate(request: requests.SimulateRequest, outputs: PlanOutputs) -> None:
    """Predict one plan and print it."""
    from domino_tune.cli import show
    from domino_tune.verbs.simulate import simulate as run

    check_places(outputs)
    with show.progress() as progress:
        progress("simulating the plan, and those that it is compared with")
        result = run(request)
    _write_files(outputs, result, result.plan.strategy)
    if outputs.report:
        from domino_tune.verbs import report

        report.report_simulation(outputs.report, request, result)
    answer(result, outputs.as_json, show.tables)


def tune(request: requests.TuneRequest, outputs: SearchOutputs) -> None:
    """Find the best plan of a layout, on this machine or at a server."""
    from domino_tune.verbs.tune import tune as run

    _search("tune", request, outputs, run)


def layout(request: requests.LayoutRequest, outputs: SearchOutputs) -> None:
    """Find the best layouts, here or at a server; the files are of the best one."""
    from domino_tune.verbs.layouts import tune_layouts

    _search("layout", request, outputs, tune_layouts)


def _search(
    kind: str, request: Any, outputs: SearchOutputs, run: Callable[[Any, Progress], Any]
) -> None:
    from domino_tune.base.memory import rare_collections
    from domino_tune.cli import service_actions, show
    from domino_tune.verbs.simulate import recommended

    check_places(outputs)
    target = getattr(request, "target", None)
    if outputs.server:
        result = service_actions.search_there(kind, request, outputs, outputs.server, target)
    else:
        with show.progress() as progress, rare_collections():
            result = run(request, progress)
        _write_files(outputs, result.best, recommended(result.best, target))
        if outputs.report:
            from domino_tune.verbs import report

            write = report.report_tuning if kind == "tune" else report.report_layouts
            write(outputs.report, request, outputs, result)
    answer(result, outputs.as_json, show.tables)


def scale(request: requests.ScaleRequest, outputs: ScaleOutputs) -> None:
    """Find the best layout at each number of GPUs, on this machine or at a server."""
    from domino_tune.base.memory import rare_collections
    from domino_tune.cli import service_actions, show
    from domino_tune.verbs.scale import tune_scale

    check_places(outputs)
    if outputs.server:
        result = service_actions.answer_there("scale", request, outputs, outputs.server)
    else:
        with show.progress() as progress, rare_collections():
            result = tune_scale(request, progress)
    if outputs.report:
        from domino_tune.verbs import report

        report.report_scale(outputs.report, request, outputs, result)
    answer(result, outputs.as_json, show.tables)


def measure(request: requests.MeasureRequest, outputs: PlanOutputs) -> None:
    """Find the plan that runs fastest on real ranks; when interrupted, print how to continue."""
    from domino_tune.base.errors import TuningInterrupted
    from domino_tune.base.memory import rare_collections
    from domino_tune.base.tables import print_line
    from domino_tune.cli import show
    from domino_tune.verbs.tune_measured import tune_measured

    check_places(outputs)
    try:
        with show.still_progress() as progress, rare_collections():
            result = tune_measured(request, progress)
    except TuningInterrupted as interrupt:
        print_line(str(interrupt), sys.stderr)
        raise
    _write_files(outputs, result.best, result.best.plan.strategy)
    if outputs.report:
        from domino_tune.verbs import report

        report.report_tuning(outputs.report, request, outputs, result)
    answer(result, outputs.as_json, show.tables)


def whatif(request: requests.WhatIfRequest, outputs: ReportOutputs) -> None:
    """Predict a plan on a changed machine or workload."""
    from domino_tune.cli import show
    from domino_tune.verbs.whatif import whatif as run

    check_places(outputs)
    with show.progress() as progress:
        result = run(request, progress)
    if outputs.report:
        from domino_tune.verbs import report

        report.report_whatif(outputs.report, request, result)
    answer(result, outputs.as_json, show.tables)


def validate(request: requests.ValidateRequest, outputs: ValidateOutputs) -> None:
    """Run plans on real ranks. Raise what ``check_result`` raises, after printing and sending the
    result.
    """
    from domino_tune.cli import show
    from domino_tune.store.formats.chrome_trace import write_trace
    from domino_tune.verbs.validate import check_result
    from domino_tune.verbs.validate import validate as run

    check_places(outputs)
    if outputs.report_to:
        from domino_tune.cli import sending

        sending.check_destination(outputs.report_to, outputs.token_file)
    with show.still_progress() as progress:
        result = run(request, progress)
    if outputs.trace:
        write_trace(outputs.trace, result.timelines)
    answer(result, outputs.as_json, show.tables)
    try:
        if outputs.report_to:
            from domino_tune.cli import sending

            sending.send_result(result, outputs.report_to, outputs.token_file)
    finally:
        check_result(result)


def profile(request: requests.ProfileRequest, outputs: JsonOutputs) -> None:
    """Measure this machine; when interrupted, print how to continue."""
    from domino_tune.cli import show, show_profile
    from domino_tune.verbs import profile
    from domino_tune.verbs.profile import profile as run

    try:
        with show_profile.progress() as progress:
            result = run(request, progress)
    except KeyboardInterrupt:
        path = profile.profile_path(request.name)
        show_profile.interrupted(path, profile.resume_command(request))
        raise
    answer(result, outputs.as_json, show.tables)


def calibrate(request: requests.CalibrateRequest, outputs: ServerOutputs) -> None:
    """Fit a profile to measured iterations, here or at a server; print what the runs showed."""
    from domino_tune.base.memory import rare_collections
    from domino_tune.cli import service_actions, show

    if outputs.server:
        result = service_actions.answer_there("calibrate", request, outputs, outputs.server)
    else:
        from domino_tune.verbs.calibrate import calibrate as run

        with show.progress() as progress, rare_collections():
            result = run(request, progress)
    answer(result, outputs.as_json, show.tables)


def plan_export(request: requests.PlanExportRequest, outputs: FileOutputs) -> None:
    """Write a framework's arguments and environment, as a file for a shell to source or as JSON."""
    from domino_tune.results import to_json
    from domino_tune.store.files import write_whole
    from domino_tune.verbs.plan import export_text
    from domino_tune.verbs.plan import plan_export as run

    check_places(outputs)
    result = run(request)
    text = json_text(to_json(result)) if outputs.as_json else export_text(result)
    if outputs.out:
        write_whole(outputs.out, text)
    else:
        sys.stdout.write(text)


def check_places(outputs: Outputs) -> None:
    """Raise InputError for a file that cannot be written, before a long computation starts."""
    from domino_tune.store.files import check_writable

    for path in outputs.files().values():
        check_writable(path)


def _write_files(outputs: PlanOutputs, best: SimulateResult, strategy: str) -> None:
    """Write the plan file, of ``strategy`` unless another is asked for, and the trace."""
    if outputs.out:
        from domino_tune.store.plans import save_plan
        from domino_tune.verbs.simulate import plan_file_of

        written = plan_file_of(best, outputs.out_of or strategy)
        save_plan(written, outputs.out)
        tell_written(outputs, best, written.plan.strategy)
    _write_trace(outputs.trace, best)


def _write_trace(path: str | None, result: SimulateResult) -> None:
    if path is not None:
        from domino_tune.store.formats.chrome_trace import write_trace

        write_trace(path, result.timelines)
