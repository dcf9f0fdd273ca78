"""The kinds of jobs as the API has them. A new kind is an entry here, and one in ``work.JOBS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from api.calibrations import new_calibration
from api.tasks import new_search
from domino_tune.service.jobs.job import JobKind, NewJob
from domino_tune.service.library import Library


@dataclass(frozen=True, kw_only=True)
class Kind:
    """``new`` makes the job that a body asks for, with a library's names, for an owner. It blocks,
    and raises InputError, PlanFileError, ConflictError and ProblemError. ``links``: the last parts
    of the paths below the job's own."""

    new: Callable[[Any, Library, str], NewJob]
    links: tuple[str, ...]


KINDS: Final[Mapping[JobKind, Kind]] = {
    "tune": Kind(
        new=partial(new_search, "tune"),
        links=("events", "plan", "report", "trace", "validations"),
    ),
    "sweep": Kind(new=partial(new_search, "sweep"), links=("events", "points")),
    "layout": Kind(new=partial(new_search, "layout"), links=("events", "plan", "report", "trace")),
    "scale": Kind(new=partial(new_search, "scale"), links=("events", "points")),
    "calibration": Kind(new=new_calibration, links=("events", "profile")),
}
