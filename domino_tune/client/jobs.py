"""Jobs as the server describes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from domino_tune.base.errors import ServiceError
from domino_tune.client.transport import error_of
from domino_tune.requests import (
    CalibrateRequest,
    LayoutRequest,
    ScaleRequest,
    TuneRequest,
    WhatIfRequest,
)
from domino_tune.requests.service import JobState
from domino_tune.results.from_json import (
    READABLE,
    result_from_json,
)
from domino_tune.results.shown import frame
from simulator.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame


class ListPage(dict[str, Any]):
    """A page of a list, as the server's JSON: ``items``, and ``next``, the cursor of the page
    after."""

    def to_frame(self) -> DataFrame:
        """Return one row an item; what an item's objects hold has columns of its own."""
        return rows_frame(self["items"])


def rows_frame(items: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return one row an item, with the columns of all."""
    return frame(map(_row, items))


def _row(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the item's values; of objects theirs, of lists texts."""
    found: dict[str, Any] = {}
    for name, value in item.items():
        if isinstance(value, Mapping):
            inner = _row(value)
            found |= {key: one for key, one in inner.items() if key not in item}
        elif isinstance(value, list):
            found[name] = "; ".join(map(str, value))
        else:
            found[name] = value
    return found


# Jobs as the server describes them ----------------------------------------------------------------

STATES: Final = get_args(JobState)
ENDED: Final = ("done", "failed")
Asked = TuneRequest | LayoutRequest | ScaleRequest | WhatIfRequest | CalibrateRequest
"""What jobs of all kinds ask."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job at a server. ``label``: its owner's name for it. ``attempts``: how often it began.

    ``done`` of ``total`` steps are finished; at most ``left`` steps are left, which take about
    ``eta_s`` seconds; ``elapsed_s``: since the job started. All are None while unknown.
    ``stopped_by``: why the search ended early, ``user`` or ``time``. ``plain`` is the job's whole
    JSON.
    """

    id: str
    kind: str
    state: JobState
    done: int
    total: int | None
    text: str
    left: int | None = None
    elapsed_s: float | None = None
    eta_s: float | None = None
    stopped_by: str | None = None
    label: str | None = None
    attempts: int = 0
    plain: Mapping[str, Any] = field(repr=False)

    @property
    def ended(self) -> bool:
        """Return whether the job has ended, after which its state no longer changes."""
        return self.state in ENDED

    @property
    def line(self) -> str:
        """Return the job's activity and progress in one line."""
        total = "" if self.total is None else f" of {self.total:,}"
        parts = [self.text, f"{self.done:,}{total} done" if self.done else ""]
        parts.append(f"at most {self.left:,} left" if self.left else "")
        parts.append("" if self.elapsed_s is None else f"{duration(self.elapsed_s)} so far")
        parts.append(f"about {duration(self.eta_s)} left" if self.eta_s else "")
        return ", ".join(part for part in parts if part) or self.state

    def result(self) -> Mapping[str, Any]:
        """Return the result as JSON.

        Raise the error of a failed job; ServiceError for a job that has not ended.
        """
        if self.state == "failed":
            problem = self.plain.get("error")
            raise error_of(problem if isinstance(problem, dict) else {})
        found = self.plain.get("result")
        if self.state != "done" or not isinstance(found, dict):
            raise ServiceError(f"Job {self.id} is {self.state} and has no result; ask again.")
        return found

    def answer(self) -> Any:
        """Return the result as Python has it locally; that of a validation is read as JSON.

        Raise as ``result`` does, InputError for another kind, and ServiceError for a result that
        this version cannot read.
        """
        plain = self.result()
        if self.kind not in READABLE:
            raise InputError(f"A {self.kind} is read as JSON; take `result()`.")
        try:
            return result_from_json(self.kind, plain, seconds=self.elapsed_s or 0.0)
        except InputError as error:
            raise ServiceError(
                f"The server's result cannot be read; it may be of another version. {error}"
            ) from None


@dataclass(frozen=True, kw_only=True)
class JobPage:
    """Jobs, newest first. ``next`` is the cursor of the next page, None on the last."""

    items: tuple[Job, ...]
    next: str | None

    def to_frame(self) -> DataFrame:
        """Return one row per job: its request, its progress, and the best so far."""
        return rows_frame(
            {
                "id": one.id, "kind": one.kind, "state": one.state, "label": one.label,
                **{name: one.plain.get(name) for name in ("created", "started", "finished")},
                "request": one.plain.get("request") or {}, "done": one.done, "total": one.total,
                "best": one.plain.get("best") or {},
            }
            for one in self.items
        )  # fmt: skip


def duration(seconds: float) -> str:
    """Return seconds in words: 42 s, 3 min 20 s, 1 h 5 min."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 1:
        return f"{whole} s"
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def job_of(plain: Mapping[str, Any]) -> Job:
    """Return a job from its JSON. Raise ServiceError if it is not a job."""
    progress = plain.get("progress") or {}
    state, name = plain.get("state"), plain.get("id")
    if state not in STATES or not isinstance(name, str) or not isinstance(progress, dict):
        raise ServiceError("The server's answer is no job; is that URL a domino_tune server?")
    return Job(
        id=name,
        kind=str(plain.get("kind")),
        state=cast(JobState, state),
        done=progress.get("done") or 0,
        total=progress.get("total"),
        text=str(progress.get("text") or ""),
        left=progress.get("left"),
        elapsed_s=progress.get("elapsed_s"),
        eta_s=progress.get("eta_s"),
        stopped_by=plain.get("stopped_by"),
        label=plain.get("label"),
        attempts=plain.get("attempts") or 0,
        plain=plain,
    )


def page_of(plain: Mapping[str, Any]) -> JobPage:
    """Return a page of jobs from its JSON. Raise ServiceError if it is not one."""
    items = plain.get("items")
    if not isinstance(items, list):
        raise ServiceError("The server's answer is no page of jobs.")
    return JobPage(items=tuple(job_of(one) for one in items), next=plain.get("next"))
