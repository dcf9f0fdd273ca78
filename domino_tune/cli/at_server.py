"""Questions to a server, its jobs and their tables, and what is sent to it."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from domino_tune.base.errors import NotFoundError
from domino_tune.base.tables import Table, print_table
from domino_tune.cli import show
from domino_tune.cli.show import warn
from domino_tune.client import Client
from domino_tune.client.jobs import Job, duration
from domino_tune.client.transport import find_token, job_at
from domino_tune.requests import SimulateRequest, WhatIfRequest, service
from domino_tune.requests.outputs import JsonOutputs, Outputs, SearchOutputs, ServerOutputs
from domino_tune.results import to_json
from domino_tune.results.from_json import READABLE
from domino_tune.results.layouts import Layouts
from domino_tune.results.measured import ValidateResult
from domino_tune.results.shown import ms
from domino_tune.results.simulate import Simulated
from domino_tune.results.tune import Tuned, stopped_words
from domino_tune.store.files import check_writable, home_dir, make_folder, read_json, write_whole
from domino_tune.store.formats.chrome_trace import write_trace_bytes
from simulator.errors import InputError

FOLDER: Final = "unsent"


def client_of(server: str, token_file: str | None) -> Client:
    """Return a client of a server, with the user's token."""
    return Client(server, token=find_token(token_file))


def jobs_list(request: service.JobsListRequest, outputs: JsonOutputs) -> None:
    """Print the newest jobs."""
    asked = {"kind": request.kind, "state": request.state, "q": request.search}
    wanted = {name: value for name, value in asked.items() if value is not None}
    with client_of(request.server, request.token_file) as client:
        jobs = client.jobs(limit=request.limit, **wanted).items
    if outputs.as_json:
        sys.stdout.write(show.json_text([job.plain for job in jobs]))
    else:
        jobs_table(jobs)


def jobs_show(request: service.JobsShowRequest, outputs: JsonOutputs) -> None:
    """Print a job, and its result when it is done."""
    with client_of(request.server, request.token_file) as client:
        _print(client.job(request.job), outputs)


def jobs_stop(request: service.JobsStopRequest, outputs: JsonOutputs) -> None:
    """Stop a job, wait for its best result so far, and print it."""
    with client_of(request.server, request.token_file) as client, show.progress() as progress:
        job = client.wait(client.stop(request.job), progress)
    _print(job, outputs)


def jobs_delete(request: service.JobsDeleteRequest, outputs: Outputs) -> None:
    """Delete a job."""
    with client_of(request.server, request.token_file) as client:
        client.delete(request.job)
    print(f"Job {request.job} is deleted.")


def search_there(
    kind: str, request: Any, outputs: SearchOutputs, server: str, target: str | None
) -> Tuned | Layouts:
    """Tune, or search layouts, at a server; write the files asked for, as the server made them."""
    from domino_tune.verbs.simulate import check_has, recommended

    with client_of(server, outputs.token_file) as client:
        with show.progress() as progress:
            job = client.result(kind, request, progress)
        found: Tuned | Layouts = job.answer()
        if outputs.out:
            best = found.best
            strategy = outputs.out_of or recommended(best, target)
            check_has(best, strategy)
            write_whole(outputs.out, client.file(job.id, f"plan-{strategy}"))
            show.tell_written(outputs, best, strategy)
        if outputs.trace:
            write_trace_bytes(outputs.trace, client.file(job.id, "trace"))
        if outputs.report:
            write_whole(outputs.report, client.file(job.id, "report"))
    return found


def answer_there(kind: str, request: Any, outputs: ServerOutputs, server: str) -> Any:
    """Return the answer of a job of a kind, which a server computes."""
    with client_of(server, outputs.token_file) as client, show.progress() as progress:
        return client.result(kind, request, progress).answer()


def simulate_there(request: SimulateRequest, outputs: ServerOutputs, server: str) -> Simulated:
    """Return a prediction of one plan, which a server computes at once."""
    with client_of(server, outputs.token_file) as client, show.progress() as progress:
        progress(f"simulating at {server}")
        return client.simulate(request)


def what_if_there(request: WhatIfRequest, outputs: ServerOutputs, server: str) -> Any:
    """Return a what-if, which a server computes: several points, or the best plans, as a job."""
    if request.sweep is not None or request.retune:
        return answer_there("whatif", request, outputs, server)
    with client_of(server, outputs.token_file) as client, show.progress() as progress:
        progress(f"simulating at {server}")
        return client.whatif(request)


def check_destination(url: str, token_file: str | None) -> None:
    """Raise InputError or AccessError before anything is measured, where sending cannot work."""
    _, job = job_at(url)
    find_token(token_file)
    make_folder(_folder(), "set DOMINO_TUNE_HOME to another folder")
    check_writable(_folder() / f"{job}.json")


def send_result(result: ValidateResult, url: str, token_file: str | None) -> None:
    """Send the result. Save it in a file until the server acknowledges it.

    Raise what ``Client.send_validation`` raises, after printing how to send the file again.
    """
    body = json.dumps(to_json(result), separators=(",", ":"), allow_nan=False).encode()
    _, job = job_at(url)
    unsent = _folder() / f"{job}-{_key(body)[:12]}.json"
    write_whole(unsent, body)
    with _resend_hint(unsent, url, token_file):
        _send(body, url, token_file)
    unsent.unlink(missing_ok=True)


def send(request: service.SendRequest, outputs: Outputs) -> None:
    """Send a saved file; remove it when the server acknowledges it."""
    path = Path(request.file)
    read_json(path, what="File of results", error=InputError)
    _send(path.read_bytes(), request.to, request.token_file)
    path.unlink(missing_ok=True)
    print(f"Sent {request.file} to {request.to}.")


def _send(body: bytes, url: str, token_file: str | None) -> None:
    """Send ``body``. Equal results have one key, so the server stores them once."""
    server, job = job_at(url)
    with client_of(server, token_file) as client:
        try:
            client.send_validation(job, json.loads(body), _key(body))
        except NotFoundError as error:
            raise NotFoundError(f"{error} Was {job} tuned at {server}, by this owner?") from None


@contextmanager
def _resend_hint(unsent: Path, url: str, token_file: str | None) -> Iterator[None]:
    """When sending fails or is interrupted, print where the results are and how to send them."""
    try:
        yield
    except BaseException:
        words = ["python", "-m", "domino_tune", "send", str(unsent), "--to", url]
        again = shlex.join([*words, *(["--token-file", token_file] if token_file else [])])
        warn([f"The results were not sent; they are saved in {unsent}. Send them with: {again}"])
        raise


def _folder() -> Path:
    return home_dir().absolute() / FOLDER


def _key(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


# Print jobs of a server as tables -----------------------------------------------------------------

_COLUMNS = ("job", "kind", "state", "label", "created", ">done", ">left", ">time", "best so far")


def jobs_table(jobs: Sequence[Job]) -> None:
    """Print one row a job."""
    narrow = ("created", "label", "best so far", "left")
    print_table(Table(columns=_COLUMNS, rows=[_row(job) for job in jobs], narrow=narrow))


def _print(job: Job, outputs: JsonOutputs) -> None:
    """Print a job, then its result when it is done. Raise the error of a job that failed."""
    if outputs.as_json:
        sys.stdout.write(show.json_text(job.plain))
        return
    jobs_table([job])
    if job.state == "failed":
        job.result()
    if job.state == "done" and job.kind in READABLE:
        show.tables(job.answer())


def _row(job: Job) -> tuple[str, ...]:
    best = job.plain.get("best") or {}
    plan = (best.get("plan") or {}).get("label", "")
    time = best.get("iteration_ms")
    total = "" if job.total is None else f" of {job.total:,}"
    return (
        job.id, job.kind, f"{job.state}{stopped_words(job.stopped_by)}",
        job.label or "",
        str(job.plain.get("created") or ""), f"{job.done:,}{total}",
        "" if job.left is None or job.ended else f"≤ {job.left:,}",
        "" if job.elapsed_s is None else duration(job.elapsed_s),
        f"{plan}: {ms(time)}" if plan and time is not None else "",
    )  # fmt: skip
