"""Actions of the jobs commands, at a server.

Imports are inside the functions, so that ``--help`` stays fast.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from domino_tune.cli.output import json_text
from domino_tune.requests import service as requests
from domino_tune.requests.outputs import JsonOutputs, Outputs

if TYPE_CHECKING:
    from domino_tune.client import Client
    from domino_tune.client.jobs import Job


def jobs_list(request: requests.JobsListRequest, outputs: JsonOutputs) -> None:
    """Print the newest jobs."""
    from domino_tune.cli import show_jobs

    asked = {"kind": request.kind, "state": request.state, "q": request.search}
    wanted = {name: value for name, value in asked.items() if value is not None}
    with _client(request) as client:
        jobs = client.jobs(limit=request.limit, **wanted).items
    if outputs.as_json:
        sys.stdout.write(json_text([job.plain for job in jobs]))
    else:
        show_jobs.listing(jobs)


def jobs_show(request: requests.JobsShowRequest, outputs: JsonOutputs) -> None:
    """Print a job, and its result when it is done."""
    with _client(request) as client:
        _print(client.job(request.job), outputs)


def jobs_stop(request: requests.JobsStopRequest, outputs: JsonOutputs) -> None:
    """Stop a job, wait for its best result so far, and print it."""
    from domino_tune.cli import show

    with _client(request) as client, show.progress() as progress:
        job = client.wait(client.stop(request.job), progress)
    _print(job, outputs)


def jobs_delete(request: requests.JobsDeleteRequest, outputs: Outputs) -> None:
    """Delete a job."""
    with _client(request) as client:
        client.delete(request.job)
    print(f"Job {request.job} is deleted.")


def _client(request: requests.ServerFields) -> Client:
    from domino_tune.client import Client
    from domino_tune.client.tokens import find_token

    return Client(request.server, token=find_token(request.token_file))


def _print(job: Job, outputs: JsonOutputs) -> None:
    """Print a job, and its result. Raise the error of a job that failed, after printing it."""
    from domino_tune.cli import show_jobs

    if outputs.as_json:
        sys.stdout.write(json_text(job.plain))
    else:
        show_jobs.one(job)
