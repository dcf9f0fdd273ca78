"""A job as the server tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

from domino_tune.base.errors import ServiceError
from domino_tune.client.answers import error_of
from domino_tune.results import Tuned
from domino_tune.results.from_json import tuned_from_json
from simulator.errors import InputError

State = Literal["queued", "running", "done", "failed", "cancelled"]
STATES: Final = get_args(State)
ENDED: Final = ("done", "failed", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A tune or sweep at a server. ``done`` of ``total`` (None: not known yet) is finished;
    ``plain`` is all of its JSON."""

    id: str
    kind: str
    state: State
    done: int
    total: int | None
    text: str
    plain: Mapping[str, Any] = field(repr=False)

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state in ENDED

    def result(self) -> Mapping[str, Any]:
        """What came out, as JSON. Raises what a failed job failed with; ServiceError for one that
        was cancelled, or has not ended yet."""
        if self.state == "failed":
            problem = self.plain.get("error")
            raise error_of(problem if isinstance(problem, dict) else {})
        found = self.plain.get("result")
        if self.state != "done" or not isinstance(found, dict):
            raise ServiceError(f"Job {self.id} is {self.state} and has no result; ask again.")
        return found


@dataclass(frozen=True, kw_only=True)
class JobPage:
    """Jobs, newest first; ``next`` is the cursor of the page after, None on the last."""

    items: tuple[Job, ...]
    next: str | None


@dataclass(frozen=True, kw_only=True)
class TuneAnswer:
    """A tune that is done: its job's id, by which its files are had, and its result."""

    id: str
    result: Tuned


def job_of(plain: Mapping[str, Any]) -> Job:
    """A job of its JSON. Raises ServiceError for what is none."""
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
    """A page of its JSON. Raises ServiceError for what is none."""
    items = plain.get("items")
    if not isinstance(items, list):
        raise ServiceError("The server's answer is no page of jobs.")
    return JobPage(items=tuple(job_of(one) for one in items), next=plain.get("next"))


def tune_answer(job: Job, *, seconds: float) -> TuneAnswer:
    """What a tune came to. Raises as ``Job.result`` does, and ServiceError where the result is
    not one that this version knows."""
    try:
        return TuneAnswer(id=job.id, result=tuned_from_json(job.result(), seconds=seconds))
    except InputError as error:
        if job.state != "done":
            raise
        raise ServiceError(
            f"The server's result cannot be read; it may be of another version. {error}"
        ) from None
