"""Actions of the commands: call the verb, write the requested files, print the result.

Verbs are imported by the action that calls them, so that others start fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from domino_tune import requests
from domino_tune.base.errors import TuningInterrupted, needed_for
from domino_tune.base.memory import rare_collections
from domino_tune.base.tables import print_line
from domino_tune.cli import show
from domino_tune.cli.asking import check_places
from domino_tune.requests import service
from domino_tune.requests.outputs import (
    FileOutputs,
    JsonOutputs,
    Outputs,
    PlanOutputs,
    ReportOutputs,
    ScaleOutputs,
    SearchOutputs,
    ServerOutputs,
    SimulateOutputs,
    ValidateOutputs,
    WhatIfOutputs,
)
from domino_tune.results import to_json
from domino_tune.results.simulate import SimulateResult
from domino_tune.store.files import write_whole


def simulate(request: requests.SimulateRequest, outputs: SimulateOutputs) -> None:
    """Predict one plan, here or at a server, and print it."""
    check_places(outputs)
    if outputs.server:
        from domino_tune.cli.at_server import simulate_there

        show.answer(simulate_there(request, outputs, outputs.server), outputs.as_json)
        return
    from domino_tune.base.cores import copies
    from domino_tune.verbs.simulate import simulate as run

    with show.progress() as progress:
        progress("simulating the plan, and those that it is compared with")
        with copies() as beside:
            result = run(request, beside=beside)
    _write_files(outputs, result, result.plan.strategy)
    _report("simulation", outputs, request, result)
    show.answer(result, outputs.as_json)


def tune(request: requests.TuneRequest, outputs: SearchOutputs) -> None:
    """Find the best plan of a layout, on this machine or at a server."""
    _search("tune", "tune:tune", "tuning", request, outputs)


def layout(request: requests.LayoutRequest, outputs: SearchOutputs) -> None:
    """Find the best layouts, here or at a server; the files are of the best one."""
    _search("layout", "layouts:tune_layouts", "layouts", request, outputs)


def _search(kind: str, verb: str, page: str, request: Any, outputs: SearchOutputs) -> None:
    from domino_tune.verbs.simulate import recommended

    check_places(outputs)
    target = getattr(request, "target", None)
    if outputs.server:
        from domino_tune.cli.at_server import search_there

        result = search_there(kind, request, outputs, outputs.server, target)
    else:
        result = _here(verb, request)
        _write_files(outputs, result.best, recommended(result.best, target))
        _report(page, outputs, request, outputs, result)
    show.answer(result, outputs.as_json)


def scale(request: requests.ScaleRequest, outputs: ScaleOutputs) -> None:
    """Find the best layout at each number of GPUs, on this machine or at a server."""
    check_places(outputs)
    result = _answered("scale", "scale:tune_scale", request, outputs)
    _report("scale", outputs, request, outputs, result)
    show.answer(result, outputs.as_json)


def measure(request: requests.MeasureRequest, outputs: PlanOutputs) -> None:
    """Find the plan that runs fastest on real ranks; when interrupted, print how to continue."""
    from domino_tune.verbs.tune_measured import tune_measured

    check_places(outputs)
    try:
        with show.still_progress() as progress, rare_collections():
            result = tune_measured(request, progress)
    except TuningInterrupted as interrupt:
        print_line(str(interrupt), sys.stderr)
        raise
    _write_files(outputs, result.best, result.best.plan.strategy)
    _report("tuning", outputs, request, outputs, result)
    show.answer(result, outputs.as_json)


def whatif(request: requests.WhatIfRequest, outputs: WhatIfOutputs) -> None:
    """Predict a plan on a changed machine or workload, here or at a server."""
    check_places(outputs)
    if outputs.server:
        from domino_tune.cli.at_server import what_if_there

        result = what_if_there(request, outputs, outputs.server)
    else:
        result = _here("whatif:whatif", request)
        _report("whatif", outputs, request, result)
    show.answer(result, outputs.as_json)


def validate(request: requests.ValidateRequest, outputs: ValidateOutputs) -> None:
    """Run plans on real ranks. Raise what ``check_result`` raises, after printing and sending the
    result."""
    from domino_tune.store.formats.chrome_trace import write_trace
    from domino_tune.verbs.validate import check_result
    from domino_tune.verbs.validate import validate as run

    check_places(outputs)
    if outputs.report_to:
        from domino_tune.cli import at_server

        at_server.check_destination(outputs.report_to, outputs.token_file)
    with show.still_progress() as progress:
        result = run(request, progress)
    if outputs.trace:
        write_trace(outputs.trace, result.timelines)
    show.answer(result, outputs.as_json)
    try:
        if outputs.report_to:
            from domino_tune.cli import at_server

            at_server.send_result(result, outputs.report_to, outputs.token_file)
    finally:
        check_result(result)


def profile(request: requests.ProfileRequest, outputs: JsonOutputs) -> None:
    """Measure this machine; when interrupted, print how to continue."""
    from domino_tune.verbs import profile

    try:
        with show.lines_progress() as progress:
            result = profile.profile(request, progress)
    except KeyboardInterrupt:
        path = profile.profile_path(request.name)
        show.interrupted(path, profile.resume_command(request))
        raise
    show.answer(result, outputs.as_json)


def calibrate(request: requests.CalibrateRequest, outputs: ServerOutputs) -> None:
    """Fit a profile to measured iterations, here or at a server; print what the runs showed."""
    result = _answered("calibrate", "calibrate:calibrate", request, outputs)
    show.answer(result, outputs.as_json)


def plan_export(request: requests.PlanExportRequest, outputs: FileOutputs) -> None:
    """Write a framework's arguments and environment, as a file for a shell to source or as JSON."""
    from domino_tune.verbs.plan import export_text
    from domino_tune.verbs.plan import plan_export as run

    check_places(outputs)
    result = run(request)
    text = show.json_text(to_json(result)) if outputs.as_json else export_text(result)
    if outputs.out:
        write_whole(outputs.out, text)
    else:
        sys.stdout.write(text)


def serve(request: service.ServeRequest, outputs: Outputs) -> None:
    """Serve until interrupted; print the address when the server answers requests."""
    with needed_for("serve"):
        from domino_tune.service.serving import serve as run

    run(request, lambda url: print(f"domino_tune serves {url} until Ctrl-C.", flush=True))


def tokens_revoke(request: service.TokensRevokeRequest, outputs: Outputs) -> None:
    """Revoke a token."""
    from domino_tune.service import token_verbs

    token_verbs.tokens_revoke(request)
    print(f"Token {request.name} is revoked.")


def _here(verb: str, request: Any) -> Any:
    """Return the answer of a function of ``domino_tune.verbs``, ``module:function``."""
    run: Callable[..., Any] = resolve_name(f"domino_tune.verbs.{verb}")
    with show.progress() as progress, rare_collections():
        return run(request, progress)


def _answered(kind: str, verb: str, request: Any, outputs: ServerOutputs) -> Any:
    """Return the answer, computed here or at a server."""
    if not outputs.server:
        return _here(verb, request)
    from domino_tune.cli.at_server import answer_there

    return answer_there(kind, request, outputs, outputs.server)


def _write_files(outputs: PlanOutputs, best: SimulateResult, strategy: str) -> None:
    """Write the plan file, of ``strategy`` unless another is asked for, and the trace."""
    if outputs.out:
        from domino_tune.store.plans import save_plan
        from domino_tune.verbs.simulate import plan_file_of

        written = plan_file_of(best, outputs.out_of or strategy)
        save_plan(written, outputs.out)
        show.tell_written(outputs, best, written.plan.strategy)
    if outputs.trace is not None:
        from domino_tune.store.formats.chrome_trace import write_trace

        write_trace(outputs.trace, best.timelines)


def _report(page: str, outputs: ReportOutputs, *told: Any) -> None:
    """Write the page, if one is asked for, by what ``verbs.report`` has for its kind."""
    if outputs.report:
        page_of = resolve_name(f"domino_tune.verbs.report:{page}_page")
        write_whole(outputs.report, page_of(*told))
