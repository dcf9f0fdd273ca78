"""What is sent to a server that tuned, and the tables of its jobs."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from domino_tune.base.errors import NotFoundError
from domino_tune.base.tables import Table, print_table
from domino_tune.cli import show
from domino_tune.cli.show import warn
from domino_tune.client import Client
from domino_tune.client.jobs import READERS, Job, duration
from domino_tune.client.transport import find_token, job_at
from domino_tune.requests.service import SendRequest
from domino_tune.results import to_json
from domino_tune.results.measured import ValidateResult
from domino_tune.results.shown import ms
from domino_tune.results.tune import stopped_words
from domino_tune.store.files import check_writable, home_dir, make_folder, read_json, write_whole
from simulator.errors import InputError

FOLDER: Final = "unsent"


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


def send_again(request: SendRequest) -> None:
    """Send a saved file; remove it when the server acknowledges it."""
    path = Path(request.file)
    read_json(path, what="File of results", error=InputError)
    _send(path.read_bytes(), request.to, request.token_file)
    path.unlink(missing_ok=True)


def _send(body: bytes, url: str, token_file: str | None) -> None:
    """Send ``body``. Equal results have one key, so the server stores them once."""
    server, job = job_at(url)
    with Client(server, token=find_token(token_file)) as client:
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


def show_job(job: Job) -> None:
    """Print a job, then its result when it is done. Raise the error of a job that failed."""
    jobs_table([job])
    if job.state == "failed":
        job.result()
    if job.state == "done" and job.kind in READERS:
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
