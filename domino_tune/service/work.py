"""The work of jobs, in slices: pure functions that any executor may run, anywhere, again.

A slice goes on from the state that the one before left. What it gives depends on the task alone,
however the work was cut and wherever it ran: a job that was killed ends with the same bytes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from domino_tune.requests import WhatIfRequest
from domino_tune.results import to_json
from domino_tune.search import DEFAULT_TRIALS, Record, choose_best
from domino_tune.service.lru_cache import Recent
from domino_tune.service.quantum import Reply
from domino_tune.service.search_state import record_from_json, record_to_json
from domino_tune.service.task import Task, digest, dump
from domino_tune.service.task_context import Opened
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.tune import AllSearched, conclude, search_all
from domino_tune.verbs.whatif import Question, ask, best_plan, check_points
from simulator.errors import unknown_name
from simulator.units import MS_PER_NS

_OPENED: Final[Recent[Opened]] = Recent(6)
_BASES: Final[Recent[Any]] = Recent(32)
"""What-ifs' predictions of things as they are, as JSON tells them."""


class PausedError(Exception):
    """A slice's time is over."""


class Pace:
    """Lets a slice take ``budget_s`` seconds from its first step on, and at least that step.

    What comes before it, say going through what earlier slices found, would else take a long job's
    whole time, slice after slice.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._until_s = math.inf
        self.steps = 0

    def __call__(self) -> None:
        """A step is done. Raises PausedError when the time is over."""
        self.steps += 1
        if self.steps == 1:
            self._until_s = time.monotonic() + self._budget_s
        if self.over:
            raise PausedError

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._until_s


class Last:
    """Progress of which the last line is kept."""

    text = ""

    def __call__(self, text: str) -> None:
        """Keep it."""
        self.text = text


def advance(task: bytes, state: bytes, budget_s: float) -> Reply:
    """One slice of a job: ``state`` is what the slice before gave, or what ``resume`` gives.

    Takes about ``budget_s`` seconds, longer where a step does. Raises the DominoTuneError that the
    job fails with.
    """
    opened = _OPENED.get(digest(task), lambda: Opened(task=Task.from_bytes(task)))
    return SLICES[opened.task.kind](opened, json.loads(state), Pace(budget_s))


def resume(points: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """The state from which a job starts whose ``points`` (index, JSON) are known already."""
    return dump({"points": {index: json.loads(body) for index, body in points}})


def quick(kind: str, task: bytes) -> bytes:
    """The result of a task that is answered at once, ``simulate`` or ``whatif``, as JSON.

    Raises the DominoTuneError that the service raises.
    """
    if kind not in QUICK:
        raise unknown_name("kind of task", kind, QUICK)
    return dump(to_json(QUICK[kind](Task.from_bytes(task))))


def forget() -> None:
    """Know no task any more, as a worker does that has just started."""
    _OPENED.clear()


def import_ahead() -> None:
    """Import what slices need: a worker that is ready does not keep its first job waiting."""
    from domino_tune.store.formats import chrome_trace  # noqa: F401
    from domino_tune.verbs import report  # noqa: F401


def _tune(opened: Opened, state: dict[str, Any], pace: Pace) -> Reply:
    request, cases, last = opened.tuning, opened.cases, Last()
    known = state.get("records") or [None] * len(cases)
    records = [
        record_from_json(kept, plans.space) if kept and kept["history"] else Record()
        for kept, plans in zip(known, cases, strict=True)
    ]
    searched: AllSearched | None = None
    with suppress(PausedError):
        searched = search_all(cases, request, last, records=records, pause=pace)
    done = sum(len(record.history) for record in records)
    limit = request.trials or (None if request.method == "exhaustive" else DEFAULT_TRIALS)
    total = limit and limit * len(cases)
    if searched is None or (pace.over and pace.steps):  # what is left is a slice of its own
        return Reply(
            done=done,
            total=total,
            text=last.text,
            best=_best_so_far(opened, records),
            state=dump({"records": [record_to_json(record) for record in records]}),
        )
    result = conclude(searched, request, last)
    answer = to_json(result)
    del answer["seconds"]  # of this run, not of the task
    return Reply(
        done=done,
        total=done,
        text="done",
        best={**answer["best"], "baseline_ms": answer["baseline_ms"]},  # so that lists say the gain
        result=dump(answer),
        artifacts=opened.artifacts(result),
    )


def _best_so_far(opened: Opened, records: list[Record]) -> dict[str, Any] | None:
    """As the result will tell the best plan."""
    found = [
        (trial, plans.case.workload)
        for plans, record in zip(opened.cases, records, strict=True)
        for trial in record.trials
    ]
    if not found:
        return None
    best = choose_best(trial for trial, _ in found)
    workload = next(its for trial, its in found if trial is best)
    return {
        "plan": to_json(best.plan),
        "iteration_ms": to_json(best.iteration_ns * MS_PER_NS),
        "micro_batch_size": workload.micro_batch_size,
        "grad_accumulation": workload.grad_accumulation,
    }


def _sweep(opened: Opened, state: dict[str, Any], pace: Pace) -> Reply:
    """One point, in as many slices as it takes; things as they are come first."""
    question, last = opened.question, Last()
    points = state["points"]
    missing = [index for index in range(question.size) if str(index) not in points]
    if "base" in state and not missing:
        return _swept(opened, state)
    index = missing[0] if "base" in state else None
    record = Record()

    def best(there: Any) -> Any:
        plans = opened.listed(there)
        if kept := state.pop("record", None):
            known = record_from_json(kept, plans.space)
            record.history, record.pruned = known.history, known.pruned
        return best_plan(plans, last, record=record, pause=pace)

    new: tuple[tuple[int, bytes], ...] = ()
    try:
        if index is None:
            state["base"] = to_json(question.base(last, best))
        else:
            points[str(index)] = body = to_json(question.point(index, last, best))
            new = ((index, dump(body)),)
    except PausedError:
        state["record"] = record_to_json(record)
    return Reply(
        done=len(points), total=question.size, text=last.text, points=new, state=dump(state)
    )


def _swept(opened: Opened, state: dict[str, Any]) -> Reply:
    """The result, as ``to_json`` gives a WhatIfResult."""
    points = [state["points"][str(index)] for index in range(opened.question.size)]
    answer = _what_if_result(opened.question, state["base"], points)
    return Reply(done=len(points), total=len(points), text="done", result=dump(answer))


def _what_if_result(question: Question, base: Any, points: list[Any]) -> dict[str, Any]:
    """What ``to_json`` gives of a WhatIfResult, of its parts. Raises InputError as ``what_if``."""
    check_points([point["error"] or "" for point in points])
    return {
        "base": base,
        "points": points,
        "sweep": question.swept or None,
        "retuned": question.retune,
        "notes": list(question.case.notes),
    }


def _simulate(task: Task) -> Any:
    return simulate(task.request, plan_file=task.plan_file, shelf=task.shelf)  # type: ignore[arg-type]


def _whatif(task: Task) -> Any:
    """As ``whatif``. Of a slider that is dragged, things as they are were just asked."""
    assert isinstance(task.request, WhatIfRequest)
    question = ask(task.request, task.plan_file, task.shelf)
    unchanged = replace(task, request=replace(task.request, change=(), sweep=None))
    base = _BASES.get(digest(unchanged.to_bytes()), lambda: to_json(question.base()))
    points = [to_json(question.point(index)) for index in range(question.size)]
    return _what_if_result(question, base, points)


SLICES: Final[dict[str, Callable[[Opened, dict[str, Any], Pace], Reply]]] = {
    "tune": _tune,
    "sweep": _sweep,
}
QUICK: Final[dict[str, Callable[[Task], Any]]] = {"simulate": _simulate, "whatif": _whatif}
