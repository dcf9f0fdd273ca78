"""The kinds of work: jobs, and questions that are answered at once. A new kind is an entry here,
and one in ``api.kinds``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final

from cachetools import LRUCache, cached

from domino_tune.requests import SimulateRequest, WhatIfRequest
from domino_tune.results import made_of, to_json
from domino_tune.results.simulate import Simulated
from domino_tune.service.encoding import json_bytes, sha256_hex
from domino_tune.service.work import Outcome, Reporter, searches
from domino_tune.service.work.searches import calibrate, check_calibration
from domino_tune.service.work.task import Task
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.whatif import About, Question, ask, asked_about


@dataclass(frozen=True)
class JobWork:
    """The work of a kind of job: ``run`` computes it, ``check`` takes a second at most, and raises
    the DominoTuneError that ``run`` would raise after a while."""

    run: Callable[[Task, Reporter], Outcome]
    check: Callable[[Task], None]


JOBS: Final[Mapping[str, JobWork]] = {
    "tune": JobWork(searches.tune, searches.check_tune),
    "layout": JobWork(searches.layout, searches.check_layout),
    "scale": JobWork(searches.scale, searches.check_scale),
    "whatif": JobWork(searches.sweep, searches.check_sweep),
    "calibrate": JobWork(calibrate, check_calibration),
}


def run_job(task: bytes, reporter: Reporter) -> Outcome:
    """Compute a job. Its result depends on the task alone. Raise the DominoTuneError that it fails
    with."""
    read = Task.from_bytes(task)
    return JOBS[read.kind].run(read, reporter)


def answer(kind: str, task: bytes) -> bytes:
    """Return the JSON of a quick answer: ``simulate``, ``whatif``, or ``check``, which has no
    result. Raise the DominoTuneError that the verb raises."""
    return json_bytes(to_json(ANSWERS[kind](Task.from_bytes(task))))


def _simulate(task: Task) -> Any:
    return simulate(task.asked(SimulateRequest), plan_file=task.plan_file, shelf=task.shelf)


def _whatif(task: Task) -> Any:
    """Answer a what-if. Keep what it is about and the unchanged prediction, which
    every step of a dragged slider needs again."""
    request = task.asked(WhatIfRequest)
    unchanged = replace(task, request={**task.request, "change": (), "sweep": None}).to_bytes()
    question = ask(request, about=_about(unchanged, task))
    points = [question.point(index) for index in range(question.size)]
    return question.answer(_unchanged(unchanged, question), points)


@cached(LRUCache(maxsize=4), key=lambda unchanged, task: sha256_hex(unchanged), lock=Lock())
def _about(unchanged: bytes, task: Task) -> About:
    """Keep a few, like ``profile_of``: each holds a profile, and the look-ups made in it."""
    return asked_about(task.asked(WhatIfRequest), task.plan_file, task.shelf)


@cached(LRUCache(maxsize=32), key=lambda unchanged, question: sha256_hex(unchanged), lock=Lock())
def _unchanged(unchanged: bytes, question: Question) -> Simulated:
    """Keep it without what pages and traces need."""
    return made_of(Simulated, question.unchanged())


ANSWERS: Final[Mapping[str, Callable[[Task], Any]]] = {
    "simulate": _simulate,
    "whatif": _whatif,
    "check": lambda task: JOBS[task.kind].check(task),
}
