"""Actions of the service's commands: serve, manage tokens, send results; and `tune` and
`calibrate` at a server.

Imports stand inside the functions, so that ``--help`` stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from domino_tune.requests import CalibrateRequest, TuneRequest
from domino_tune.requests import service as requests
from domino_tune.requests.outputs import CalibrateOutputs, Outputs, TuneOutputs

if TYPE_CHECKING:
    from domino_tune.results.calibrate import CalibrateResult
    from domino_tune.results.layouts import Layouts
    from domino_tune.results.scale import ScaleResult
    from domino_tune.results.tune import Tuned


def serve(request: requests.ServeRequest, outputs: Outputs) -> None:
    """Serve until interrupted; print the address when the server answers requests."""
    from domino_tune.base.extras import needed_for

    with needed_for("serve"):
        from domino_tune.service.serving import serve as run

    run(request, lambda url: print(f"domino_tune serves {url} until Ctrl-C.", flush=True))


def tokens_revoke(request: requests.TokensRevokeRequest, outputs: Outputs) -> None:
    """Revoke a token."""
    from domino_tune.service import token_verbs

    token_verbs.tokens_revoke(request)
    print(f"Token {request.name} is revoked.")


def tune_there(request: TuneRequest, outputs: TuneOutputs, server: str) -> Tuned | Layouts:
    """Tune, or search layouts, at a server; write the files asked for, as the server made them."""
    from domino_tune.cli import show
    from domino_tune.cli.output import tell_written
    from domino_tune.client import Client
    from domino_tune.client.tokens import find_token
    from domino_tune.store.files import write_whole
    from domino_tune.store.formats.chrome_trace import write_trace_bytes
    from domino_tune.verbs.written import check_has, recommended

    with Client(server, token=find_token(outputs.token_file)) as client:
        kind = "layout" if request.gpus or request.global_batch_size else "tune"
        with show.progress() as progress:
            job = client.result(kind, request, progress)
        found: Tuned | Layouts = job.answer()
        if outputs.out:
            best = found.best
            strategy = outputs.out_of or recommended(best, request.target)
            check_has(best, strategy)
            write_whole(outputs.out, client.file(job.id, f"plan-{strategy}"))
            tell_written(outputs, best, strategy)
        if outputs.trace:
            write_trace_bytes(outputs.trace, client.file(job.id, "trace"))
        if outputs.report:
            write_whole(outputs.report, client.file(job.id, "report"))
    return found


def scale_there(request: TuneRequest, outputs: TuneOutputs, server: str) -> ScaleResult:
    """Find the best layout at each number of GPUs at a server."""
    found: ScaleResult = _answer("scale", request, outputs.token_file, server)
    return found


def calibrate_there(
    request: CalibrateRequest, outputs: CalibrateOutputs, server: str
) -> CalibrateResult:
    """Fit a profile at a server, which keeps it."""
    found: CalibrateResult = _answer("calibration", request, outputs.token_file, server)
    return found


def _answer(
    kind: str, request: TuneRequest | CalibrateRequest, token_file: str | None, server: str
) -> Any:
    from domino_tune.cli import show
    from domino_tune.client import Client
    from domino_tune.client.tokens import find_token

    with Client(server, token=find_token(token_file)) as client, show.progress() as progress:
        return client.result(kind, request, progress).answer()


def send(request: requests.SendRequest, outputs: Outputs) -> None:
    """Send saved results."""
    from domino_tune.cli.sending import send_again

    send_again(request)
    print(f"Sent {request.file} to {request.to}.")
