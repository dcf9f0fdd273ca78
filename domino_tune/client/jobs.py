"""Jobs: tunes, sweeps and searches of layouts as the server describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeVar, cast, get_args

from domino_tune.base.errors import ServiceError
from domino_tune.client.address import segment
from domino_tune.client.answers import error_of
from domino_tune.results import Tuned
from domino_tune.results.from_json import layouts_from_json, tuned_from_json
from domino_tune.results.layouts import Layouts
from simulator.errors import InputError

State = Literal["queued", "running", "done", "failed", "cancelled"]
STATES: Final = get_args(State)
ENDED: Final = ("done", "failed", "cancelled")
Search = Literal["tune", "layout"]
"""Kinds of jobs that have files: a plan, a report and a trace."""
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A tune, a sweep or a search of layouts at a server.

    ``done`` of ``total`` steps are finished; ``total`` is None while it is not known. ``plain`` is
    the job's whole JSON.
    """

    id: str
    kind: str
    state: State
    done: int
    total: int | None
    text: str
    plain: Mapping[str, Any] = field(repr=False)

    @property
    def ended(self) -> bool:
        """Return whether the job has ended: its state does not change any more."""
        return self.state in ENDED

    def result(self) -> Mapping[str, Any]:
        """Return the result as JSON.

        Raise the error of a failed job; ServiceError for a job that was cancelled or has not ended.
        """
        if self.state == "failed":
            problem = self.plain.get("error")
            raise error_of(problem if isinstance(problem, dict) else {})
        found = self.plain.get("result")
        if self.state != "done" or not isinstance(found, dict):
            raise ServiceError(f"Job {self.id} is {self.state} and has no result; ask again.")
        return found


@dataclass(frozen=True, kw_only=True)
class JobPage:
    """Jobs, newest first. ``next`` is the cursor of the next page, None on the last."""

    items: tuple[Job, ...]
    next: str | None


@dataclass(frozen=True, kw_only=True)
class TuneAnswer:
    """A finished tune: its result, and the id of its job, which its files are asked by."""

    id: str
    result: Tuned


@dataclass(frozen=True, kw_only=True)
class LayoutsAnswer:
    """A finished search of layouts: its result, and the id of its job, which its files are asked
    by."""

    id: str
    result: Layouts


def path_of(job: Job) -> str:
    """Return the path of a job at its server."""
    return f"/v1/{job.kind}s/{segment(job.id)}"


def job_of(plain: Mapping[str, Any]) -> Job:
    """Return a job from its JSON. Raise ServiceError for anything else."""
    progress = plain.get("progress") or {}
    state, name = plain.get("state"), plain.get("id")
    if state not in STATES or not isinstance(name, str) or not isinstance(progress, dict):
        raise ServiceError("The server's answer is no job; is that URL a domino_tune server?")
    return Job(
        id=name,
        kind=str(plain.get("kind")),
        state=cast(State, state),
        done=progress.get("done") or 0,
        total=progress.get("total"),
        text=str(progress.get("text") or ""),
        plain=plain,
    )


def page_of(plain: Mapping[str, Any]) -> JobPage:
    """Return a page of jobs from its JSON. Raise ServiceError for anything else."""
    items = plain.get("items")
    if not isinstance(items, list):
        raise ServiceError("The server's answer is no page of jobs.")
    return JobPage(items=tuple(job_of(one) for one in items), next=plain.get("next"))


def tune_answer(job: Job, *, seconds: float) -> TuneAnswer:
    """Return what an ended tune found. ``seconds`` is how long the caller waited.

    Raise as ``Job.result`` does, and ServiceError for a result that this version cannot read.
    """
    return TuneAnswer(id=job.id, result=_read(job, partial(tuned_from_json, seconds=seconds)))


def layouts_answer(job: Job, *, seconds: float) -> LayoutsAnswer:
    """Return what an ended search of layouts found, as ``tune_answer`` does."""
    return LayoutsAnswer(id=job.id, result=_read(job, partial(layouts_from_json, seconds=seconds)))


def _read(job: Job, read: Callable[[Any], Found]) -> Found:
    try:
        return read(job.result())
    except InputError as error:
        if job.state != "done":
            raise
        raise ServiceError(
            f"The server's result cannot be read; it may be of another version. {error}"
        ) from None
