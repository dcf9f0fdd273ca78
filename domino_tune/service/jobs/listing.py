"""Which jobs a list holds."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement

from domino_tune.service.encoding import json_text
from domino_tune.service.jobs.job import JobState
from domino_tune.service.sql.tables import jobs


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """What jobs must have in common; None: anything. Times in seconds since 1970: jobs made from
    ``from_s`` on, and before ``until_s``."""

    state: JobState | None = None
    model: str | None = None
    profile: str | None = None
    from_s: float | None = None
    until_s: float | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions on rows of ``tables.jobs``."""
        found: list[ColumnElement[bool]] = []
        if self.state is not None:
            found.append(jobs.c.state == self.state)
        for name in ("model", "profile"):
            if (value := getattr(self, name)) is not None:
                # Compact JSON: a quote inside a string is escaped, so that only the key matches.
                member = json_text({name: value})[1:-1]
                found.append(jobs.c.request.contains(member, autoescape=True))
        if self.from_s is not None:
            found.append(jobs.c.created_s >= self.from_s)
        if self.until_s is not None:
            found.append(jobs.c.created_s < self.until_s)
        return found


EVERY = JobFilter()
