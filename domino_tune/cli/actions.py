"""Actions of the commands: call the verb, write the requested files, print the result.

Imports are inside the functions, so that ``--help`` stays fast.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from domino_tune import requests
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
    ValidateOutputs,
)

if TYPE_CHECKING:
    from domino_tune.base.progress import Progress
    from domino_tune.client import Client
    from domino_tune.client.jobs import Job
    from domino_tune.requests.service import ServerFields
    from domino_tune.results.layouts import Layouts
    from domino_tune.results.simulate import Simulated, SimulateResult
    from domino_tune.results.tune import Tuned


def answer(result: Any, as_json: bool, table: Callable[[Any], None]) -> None:
    """Print the result as JSON or as its table."""
    from domino_tune.results import to_json

    if as_json:
        sys.stdout.write(json_text(to_json(result)))
    else:
        table(result)


def tell_written(outputs: PlanOutputs, best: Simulated, strategy: str) -> None:
    """Say whose plan was written, where it is not the chosen one's and nobody asked for it."""
    from domino_tune.base.tables import print_line

    if strategy != best.plan.strategy and not outputs.out_of:
        print_line(
            f"{outputs.out} holds the plan of {strategy}, which the verdict recommends; that of "
            f"{best.plan.strategy} is written with --out-of {best.plan.strategy}.",
            sys.stderr,
        )


def json_text(value: Any) -> str:
    """Return ``value`` as indented JSON with a final newline."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def printed(verb: str, table: str) -> Callable[[Any, JsonOutputs], None]:
    """Return the action of a verb whose result is only printed.

    ``verb`` is a function of domino_tune, ``table`` one of this package that prints its result,
    both as ``module:function``; they are imported when the action runs.
    """

    def action(request: Any, outputs: JsonOutputs) -> None:
        answer(load("domino_tune", verb)(request), outputs.as_json, load("domino_tune.cli", table))

    return action


def load(package: str, place: str) -> Any:
    """Return the function at ``place``, ``module:function``, of a package."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"{package}.{module}"), name)


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
    from domino_tune.cli import show
    from domino_tune.verbs.simulate import recommended

    check_places(outputs)
    target = getattr(request, "target", None)
    if outputs.server:
        result = search_there(kind, request, outputs, outputs.server, target)
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
    from domino_tune.cli import show
    from domino_tune.verbs.scale import tune_scale

    check_places(outputs)
    if outputs.server:
        result = answer_there("scale", request, outputs, outputs.server)
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
    result."""
    from domino_tune.cli import show
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
    answer(result, outputs.as_json, show.tables)
    try:
        if outputs.report_to:
            from domino_tune.cli import at_server

            at_server.send_result(result, outputs.report_to, outputs.token_file)
    finally:
        check_result(result)


def profile(request: requests.ProfileRequest, outputs: JsonOutputs) -> None:
    """Measure this machine; when interrupted, print how to continue."""
    from domino_tune.cli import show
    from domino_tune.verbs import profile
    from domino_tune.verbs.profile import profile as run

    try:
        with show.lines_progress() as progress:
            result = run(request, progress)
    except KeyboardInterrupt:
        path = profile.profile_path(request.name)
        show.interrupted(path, profile.resume_command(request))
        raise
    answer(result, outputs.as_json, show.tables)


def calibrate(request: requests.CalibrateRequest, outputs: ServerOutputs) -> None:
    """Fit a profile to measured iterations, here or at a server; print what the runs showed."""
    from domino_tune.base.memory import rare_collections
    from domino_tune.cli import show

    if outputs.server:
        result = answer_there("calibrate", request, outputs, outputs.server)
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


# Actions of the jobs commands, at a server --------------------------------------------------------
# Imports are inside the functions, so that ``--help`` stays fast.


def jobs_list(request: service.JobsListRequest, outputs: JsonOutputs) -> None:
    """Print the newest jobs."""
    from domino_tune.cli import at_server

    asked = {"kind": request.kind, "state": request.state, "q": request.search}
    wanted = {name: value for name, value in asked.items() if value is not None}
    with _client(request) as client:
        jobs = client.jobs(limit=request.limit, **wanted).items
    if outputs.as_json:
        sys.stdout.write(json_text([job.plain for job in jobs]))
    else:
        at_server.jobs_table(jobs)


def jobs_show(request: service.JobsShowRequest, outputs: JsonOutputs) -> None:
    """Print a job, and its result when it is done."""
    with _client(request) as client:
        _print(client.job(request.job), outputs)


def jobs_stop(request: service.JobsStopRequest, outputs: JsonOutputs) -> None:
    """Stop a job, wait for its best result so far, and print it."""
    from domino_tune.cli import show

    with _client(request) as client, show.progress() as progress:
        job = client.wait(client.stop(request.job), progress)
    _print(job, outputs)


def jobs_delete(request: service.JobsDeleteRequest, outputs: Outputs) -> None:
    """Delete a job."""
    with _client(request) as client:
        client.delete(request.job)
    print(f"Job {request.job} is deleted.")


def _client(request: ServerFields) -> Client:
    from domino_tune.client import Client
    from domino_tune.client.transport import find_token

    return Client(request.server, token=find_token(request.token_file))


def _print(job: Job, outputs: JsonOutputs) -> None:
    """Print a job, and its result. Raise the error of a job that failed, after printing it."""
    from domino_tune.cli import at_server

    if outputs.as_json:
        sys.stdout.write(json_text(job.plain))
    else:
        at_server.show_job(job)


# Actions of the service's commands ----------------------------------------------------------------
# Serve, manage tokens, send results; and ask a server.
#
# Imports stand inside the functions, so that ``--help`` stays fast.


def serve(request: service.ServeRequest, outputs: Outputs) -> None:
    """Serve until interrupted; print the address when the server answers requests."""
    from domino_tune.base.errors import needed_for

    with needed_for("serve"):
        from domino_tune.service.serving import serve as run

    run(request, lambda url: print(f"domino_tune serves {url} until Ctrl-C.", flush=True))


def tokens_revoke(request: service.TokensRevokeRequest, outputs: Outputs) -> None:
    """Revoke a token."""
    from domino_tune.service import token_verbs

    token_verbs.tokens_revoke(request)
    print(f"Token {request.name} is revoked.")


def search_there(
    kind: str, request: Any, outputs: SearchOutputs, server: str, target: str | None
) -> Tuned | Layouts:
    """Tune, or search layouts, at a server; write the files asked for, as the server made them."""
    from domino_tune.cli import show
    from domino_tune.client import Client
    from domino_tune.client.transport import find_token
    from domino_tune.store.files import write_whole
    from domino_tune.store.formats.chrome_trace import write_trace_bytes
    from domino_tune.verbs.simulate import check_has, recommended

    with Client(server, token=find_token(outputs.token_file)) as client:
        with show.progress() as progress:
            job = client.result(kind, request, progress)
        found: Tuned | Layouts = job.answer()
        if outputs.out:
            best = found.best
            strategy = outputs.out_of or recommended(best, target)
            check_has(best, strategy)
            write_whole(outputs.out, client.file(job.id, f"plan-{strategy}"))
            tell_written(outputs, best, strategy)
        if outputs.trace:
            write_trace_bytes(outputs.trace, client.file(job.id, "trace"))
        if outputs.report:
            write_whole(outputs.report, client.file(job.id, "report"))
    return found


def answer_there(kind: str, request: Any, outputs: ServerOutputs, server: str) -> Any:
    """Return the answer of a job of a kind, which a server computes."""
    from domino_tune.cli import show
    from domino_tune.client import Client
    from domino_tune.client.transport import find_token

    token = find_token(outputs.token_file)
    with Client(server, token=token) as client, show.progress() as progress:
        return client.result(kind, request, progress).answer()


def send(request: service.SendRequest, outputs: Outputs) -> None:
    """Send saved results."""
    from domino_tune.cli.at_server import send_again

    send_again(request)
    print(f"Sent {request.file} to {request.to}.")
