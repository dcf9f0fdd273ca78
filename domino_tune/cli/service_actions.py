"""Actions of the service's commands: serve, manage tokens, send results; and ask a server.

Imports stand inside the functions, so that ``--help`` stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from domino_tune.requests import service as requests
from domino_tune.requests.outputs import Outputs, SearchOutputs, ServerOutputs

if TYPE_CHECKING:
    from domino_tune.results.layouts import Layouts
    from domino_tune.results.tune import Tuned


def serve(request: requests.ServeRequest, outputs: Outputs) -> None:
    """Serve until interrupted; print the address when the server answers requests."""
    from domino_tune.base.errors import needed_for

    with needed_for("serve"):
        from domino_tune.service.serving import serve as run

    run(request, lambda url: print(f"domino_tune serves {url} until Ctrl-C.", flush=True))


def tokens_revoke(request: requests.TokensRevokeRequest, outputs: Outputs) -> None:
    """Revoke a token."""
    from domino_tune.service import token_verbs

    token_verbs.tokens_revoke(request)
    print(f"Token {request.name} is revoked.")


def search_there(
    kind: str, request: Any, outputs: SearchOutputs, server: str, target: str | None
) -> Tuned | Layouts:
    """Tune, or search layouts, at a server; write the files asked for, as the server made them."""
    from domino_tune.cli import show
    from domino_tune.cli.output import tell_written
    from domino_tune.client import Client
    from domino_tune.client.tokens import find_token
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
    from domino_tune.client.tokens import find_token

    token = find_token(outputs.token_file)
    with Client(server, token=token) as client, show.progress() as progress:
        return client.result(kind, request, progress).answer()


def send(request: requests.SendRequest, outputs: Outputs) -> None:
    """Send saved results."""
    from domino_tune.cli.sending import send_again

    send_again(request)
    print(f"Sent {request.file} to {request.to}.")
