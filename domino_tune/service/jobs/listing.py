"""Which jobs a list contains, and which text a search of them examines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, or_

from domino_tune.requests.service import JobKind, JobState
from domino_tune.service.encoding import json_text
from domino_tune.service.sql.tables import jobs


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """Conditions that jobs must meet; None: any value. Times are seconds since 1970: jobs created
    at ``from_s`` or later, and before ``until_s``. ``words``: each occurs in label or request, in
    small or capital letters, or is the job's id. ``of``: the job that a validation is of.
    """

    kind: JobKind | None = None
    state: JobState | None = None
    model: str | None = None
    profile: str | None = None
    words: str | None = None
    from_s: float | None = None
    until_s: float | None = None
    of: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions on rows of ``tables.jobs``."""
        found: list[ColumnElement[bool]] = []
        for name in ("kind", "state"):
            if (value := getattr(self, name)) is not None:
                found.append(jobs.c[name] == value)
        for name in ("model", "profile", "of"):
            if (value := getattr(self, name)) is not None:
                # Compact JSON: quotes inside strings are escaped, so that only the key matches.
                member = json_text({name: value})[1:-1]
                found.append(jobs.c.request.contains(member, autoescape=True))
        for word in (self.words or "").split():
            in_text = jobs.c.searched.contains(_folded(word), autoescape=True)
            found.append(or_(in_text, jobs.c.id == json_text(word)[1:-1]))
        if self.from_s is not None:
            found.append(jobs.c.created_s >= self.from_s)
        if self.until_s is not None:
            found.append(jobs.c.created_s < self.until_s)
        return found


EVERY = JobFilter()


def searched(request: Mapping[str, Any], label: str | None = None) -> str:
    """Return the text in which ``words`` are searched: the label, and the request's values, each
    after its name. It is built here, since databases fold letters in different ways.
    """
    return _folded("\n".join([label or "", *_lines(request)]))


def _lines(request: Mapping[str, Any]) -> Iterator[str]:
    for name, value in request.items():
        if isinstance(value, Mapping):
            yield from _lines(value)
        elif isinstance(value, list | tuple):
            yield from (f"{name} {one}" for one in value)
        else:
            yield f"{name} {value}"


def _folded(text: str) -> str:
    """Return the text without capital letters, in ASCII as JSON writes it."""
    return json_text(text.casefold())[1:-1]
