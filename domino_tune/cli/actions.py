"""Actions of the commands: call the verb, write the requested files, print the result.

Imports are inside the functions, so that ``--help`` stays fast.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from domino_tune import requests
from domino_tune.cli.output import answer, json_text, tell_written
from domino_tune.requests.outputs import (
    CalibrateOutputs,
    FileOutputs,
    JsonOutputs,
    Outputs,
    PlanOutputs,
    ReportOutputs,
    TuneOutputs,
    ValidateOutputs,
)

if TYPE_CHECKING:
    from domino_tune.results.simulate import SimulateResult


def simulate(request: requests.SimulateRequest, outputs: PlanOutputs) -> None:
    """Predict one plan and print it."""
    from domino_tune.cli import show
    from domino_tune.verbs.simulate import simulate as run

    _check_places(outputs)
    with show.progress() as progress:
        progress("simulating the plan, and those that it is compared with")
        result = run(request)
    _write_files(outputs, result, result.plan.strategy)
    if outputs.report:
        from domino_tune.verbs import report

        report.report_simulation(outputs.report, request, result)
    answer(result, outputs.json, show.tables)


def tune(request: requests.TuneRequest, outputs: TuneOutputs) -> None:
    """Find the best plan, on this machine or at a server."""
    _check_places(outputs)
    if request.sweep is not None:
        _tune_scale(request, outputs)
    elif outputs.server:
        from domino_tune.cli import service_actions, show

        result = service_actions.tune_there(request, outputs, outputs.server)
        answer(result, outputs.json, show.tables)
    else:
        _tune_here(request, outputs)


def _tune_here(request: requests.TuneRequest, outputs: TuneOutputs) -> None:
    """Find the best plan on this machine; when interrupted, print how to continue."""
    from domino_tune.base.errors import TuningInterrupted
    from domino_tune.base.garbage import rare_collections
    from domino_tune.base.tables import print_line
    from domino_tune.cli import show
    from domino_tune.verbs.tune import tune as run
    from domino_tune.verbs.written import recommended

    if request.gpus or request.global_batch_size:
        _tune_layouts(request, outputs)
        return
    try:
        measures = request.objective == "measure"
        shown = show.still_progress() if measures else show.progress()
        with shown as progress, rare_collections():
            result = run(request, progress)
    except TuningInterrupted as interrupt:
        print_line(str(interrupt), sys.stderr)
        raise
    strategy = result.best.plan.strategy if measures else recommended(result.best, request.target)
    _write_files(outputs, result.best, strategy)
    if outputs.report:
        from domino_tune.verbs import report

        report.report_tuning(outputs.report, request, outputs, result)
    answer(result, outputs.json, show.tables)


def _tune_layouts(request: requests.TuneRequest, outputs: TuneOutputs) -> None:
    """Find the best layouts; the files are of the best one."""
    from domino_tune.base.garbage import rare_collections
    from domino_tune.cli import show
    from domino_tune.verbs.layouts import tune_layouts
    from domino_tune.verbs.written import recommended

    with show.progress() as progress, rare_collections():
        result = tune_layouts(request, progress)
    _write_files(outputs, result.best, recommended(result.best))
    if outputs.report:
        from domino_tune.verbs import report

        report.report_layouts(outputs.report, request, outputs, result)
    answer(result, outputs.json, show.tables)


def _tune_scale(request: requests.TuneRequest, outputs: TuneOutputs) -> None:
    """Find the best layout at each number of GPUs, on this machine or at a server. Raise InputError
    if a file of a single layout is asked for.
    """
    from domino_tune.base.garbage import rare_collections
    from domino_tune.cli import service_actions, show
    from domino_tune.verbs.scale import tune_scale
    from simulator.errors import InputError

    if outputs.out or outputs.trace:
        raise InputError(
            "--out and --trace write files of one layout, and --sweep finds many; leave them out, "
            "or give one number as --gpus N."
        )
    if outputs.server:
        result = service_actions.scale_there(request, outputs, outputs.server)
    else:
        with show.progress() as progress, rare_collections():
            result = tune_scale(request, progress)
    if outputs.report:
        from domino_tune.verbs import report

        report.report_scale(outputs.report, request, outputs, result)
    answer(result, outputs.json, show.tables)


def whatif(request: requests.WhatIfRequest, outputs: ReportOutputs) -> None:
    """Predict a plan on a changed machine or workload."""
    from domino_tune.cli import show
    from domino_tune.verbs.whatif import whatif as run

    _check_places(outputs)
    with show.progress() as progress:
        result = run(request, progress)
    if outputs.report:
        from domino_tune.verbs import report

        report.report_whatif(outputs.report, request, result)
    answer(result, outputs.json, show.tables)


def validate(request: requests.ValidateRequest, outputs: ValidateOutputs) -> None:
    """Run plans on real ranks. Raise what ``check_result`` raises, after printing and sending the
    result.
    """
    from domino_tune.cli import show
    from domino_tune.store.formats.chrome_trace import write_trace
    from domino_tune.verbs.validate import check_result
    from domino_tune.verbs.validate import validate as run

    _check_places(outputs)
    if outputs.report_to:
        from domino_tune.cli import sending

        sending.check_destination(outputs.report_to, outputs.token_file)
    with show.still_progress() as progress:
        result = run(request, progress)
    if outputs.trace:
        write_trace(outputs.trace, result.timelines)
    answer(result, outputs.json, show.tables)
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
    answer(result, outputs.json, show.tables)


def calibrate(request: requests.CalibrateRequest, outputs: CalibrateOutputs) -> None:
    """Fit a profile to measured iterations, here or at a server; print what the runs showed."""
    from domino_tune.base.garbage import rare_collections
    from domino_tune.cli import service_actions, show

    if outputs.server:
        result = service_actions.calibrate_there(request, outputs, outputs.server)
    else:
        from domino_tune.verbs.calibrate import calibrate as run

        with show.progress() as progress, rare_collections():
            result = run(request, progress)
    answer(result, outputs.json, show.tables)


def plan_export(request: requests.PlanExportRequest, outputs: FileOutputs) -> None:
    """Write a framework's arguments and environment, as a file for a shell to source or as JSON."""
    from domino_tune.results.json_form import to_json
    from domino_tune.store.files import write_whole
    from domino_tune.verbs.plan import export_text
    from domino_tune.verbs.plan import plan_export as run

    _check_places(outputs)
    result = run(request)
    text = json_text(to_json(result)) if outputs.json else export_text(result)
    if outputs.out:
        write_whole(outputs.out, text)
    else:
        sys.stdout.write(text)


def _check_places(outputs: Outputs) -> None:
    """Raise InputError for a file that cannot be written, before a long computation starts."""
    from domino_tune.store.files import check_writable

    for path in outputs.files().values():
        check_writable(path)


def _write_files(outputs: PlanOutputs, best: SimulateResult, strategy: str) -> None:
    """Write the plan file, of ``strategy`` unless another is asked for, and the trace."""
    if outputs.out:
        from domino_tune.store.plans import save_plan
        from domino_tune.verbs.written import plan_file_of

        written = plan_file_of(best, outputs.out_of or strategy)
        save_plan(written, outputs.out)
        tell_written(outputs, best, written.plan.strategy)
    _write_trace(outputs.trace, best)


def _write_trace(path: str | None, result: SimulateResult) -> None:
    if path is not None:
        from domino_tune.store.formats.chrome_trace import write_trace

        write_trace(path, result.timelines)
