"""The work of jobs, in quanta: pure functions that any executor can run, anywhere, and again.

A quantum goes on from the state that the one before returned. The result depends on the task alone,
not on where the quanta ended or where they ran: a job whose workers were killed ends with the same
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any, Final

from cachetools import LRUCache, cached

from domino_tune.requests import WhatIfRequest
from domino_tune.results import LayoutsResult, TuneResult, to_json
from domino_tune.search import DEFAULT_TRIALS, Record, choose_best
from domino_tune.search.layouts import LayoutSearch
from domino_tune.service.encoding import json_bytes, sha256_hex
from domino_tune.service.tasks.context import TaskContext
from domino_tune.service.tasks.quantum import PausedError, Quantum, QuantumResult
from domino_tune.service.tasks.search_state import (
    layouts_to_json,
    record_from_json,
    record_to_json,
    restore_layouts,
)
from domino_tune.service.tasks.task import Task
from domino_tune.verbs.layouts import best_so_far
from domino_tune.verbs.layouts import conclude as conclude_layouts
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.tune import AllSearched, conclude, search_all
from domino_tune.verbs.whatif import Question, ask, best_plan, check_points
from simulator.case import Case
from simulator.errors import unknown_name
from simulator.units import MS_PER_NS

GAINS: Final = ("domino_gain", "domino_gain_here")
"""What is not known of a layout before the search has ended."""


class LastProgress:
    """A Progress that keeps its last line."""

    text = ""

    def __call__(self, text: str) -> None:
        """Keep the line."""
        self.text = text


def advance(task: bytes, state: bytes, budget_s: float) -> QuantumResult:
    """Compute one quantum of a job; ``state`` comes from the quantum before, or from ``resume``.

    Take about ``budget_s`` seconds, longer where one step does. Raise the DominoTuneError that the
    job fails with.
    """
    context = _context(task)
    return JOBS[context.task.kind](context, json.loads(state), Quantum(budget_s))


def resume(points: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """Return the first state of a job whose ``points`` (index, JSON) are known already."""
    return json_bytes({"points": {index: json.loads(body) for index, body in points}})


def quick(kind: str, task: bytes) -> bytes:
    """Return the result of a ``simulate`` or ``whatif`` task, which is no job, as JSON.

    Raise the DominoTuneError that the verb raises.
    """
    if kind not in QUICK:
        raise unknown_name("kind of task", kind, QUICK)
    return json_bytes(to_json(QUICK[kind](Task.from_bytes(task))))


def forget() -> None:
    """Forget all tasks, as if the worker had just started."""
    _context.cache_clear()


def import_ahead() -> None:
    """Import what quanta need, so that the first job of a worker does not wait for it."""
    from domino_tune.store.formats import chrome_trace  # noqa: F401
    from domino_tune.verbs import report  # noqa: F401


@cached(LRUCache(maxsize=6), key=sha256_hex, lock=Lock())
def _context(task: bytes) -> TaskContext:
    return TaskContext(task=Task.from_bytes(task))


def _tune(context: TaskContext, state: dict[str, Any], quantum: Quantum) -> QuantumResult:
    request, cases, progress = context.tuning, context.cases, LastProgress()
    stored = state.get("records") or [None] * len(cases)
    records = [
        record_from_json(one, plans.space) if one and one["history"] else Record()
        for one, plans in zip(stored, cases, strict=True)
    ]
    searched: AllSearched | None = None
    with suppress(PausedError):
        searched = search_all(cases, request, progress, records=records, pause=quantum)
    done = sum(len(record.history) for record in records)
    limit = request.trials or (None if request.method == "exhaustive" else DEFAULT_TRIALS)
    total = limit and limit * len(cases)
    if searched is None or (quantum.over and quantum.steps):  # the rest takes a quantum of its own
        return QuantumResult(
            done=done,
            total=total,
            text=progress.text,
            best=_best_so_far(context, records),
            state=json_bytes({"records": [record_to_json(record) for record in records]}),
        )
    return _found(context, conclude(searched, request, progress), done)


def _found(context: TaskContext, result: TuneResult | LayoutsResult, done: int) -> QuantumResult:
    """Return the last quantum of a search, after ``done`` evaluations."""
    answer = to_json(result)
    del answer["seconds"]  # of this run, not of the task
    return QuantumResult(
        done=done,
        total=done,
        text="done",
        best=answer["best"] if isinstance(result, TuneResult) else answer["layouts"][0],
        result=json_bytes(answer),
        artifacts=context.artifacts(result),
    )


def _best_so_far(context: TaskContext, records: list[Record]) -> dict[str, Any] | None:
    """Return the best plan as the result will state it; None where there is none yet."""
    found = [
        (trial, plans.case.workload)
        for plans, record in zip(context.cases, records, strict=True)
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


def _layout(context: TaskContext, state: dict[str, Any], quantum: Quantum) -> QuantumResult:
    with context.alone:
        space, progress, ended = context.layouts, LastProgress(), False
        restore_layouts(state.get("layouts", []), space.candidates)
        search = LayoutSearch(space.candidates, progress, pause=quantum)
        with suppress(PausedError):
            search.run()
            ended = True
        if ended and not (quantum.over and quantum.steps):
            return _found(context, conclude_layouts(space, search), search.evaluations)
        best = to_json(best_so_far(search))
        return QuantumResult(
            done=search.evaluations,
            text=progress.text,
            best=best and {name: best[name] for name in best if name not in GAINS},
            state=json_bytes({"layouts": layouts_to_json(space.candidates)}),
        )


def _sweep(context: TaskContext, state: dict[str, Any], quantum: Quantum) -> QuantumResult:
    """Compute one point, in as many quanta as it takes. The unchanged case comes first."""
    question, progress = context.question, LastProgress()
    points = state["points"]
    missing = [index for index in range(question.size) if str(index) not in points]
    if "base" in state and not missing:
        return _sweep_result(context, state)
    index = missing[0] if "base" in state else None
    record = Record()

    def best(case: Case) -> Any:
        plans = context.point_plans(case)
        if stored := state.pop("record", None):
            known = record_from_json(stored, plans.space)
            record.history, record.pruned = known.history, known.pruned
        return best_plan(plans, progress, record=record, pause=quantum)

    new: tuple[tuple[int, bytes], ...] = ()
    try:
        if index is None:
            state["base"] = to_json(question.base(progress, best))
        else:
            points[str(index)] = body = to_json(question.point(index, progress, best))
            new = ((index, json_bytes(body)),)
    except PausedError:
        state["record"] = record_to_json(record)
    return QuantumResult(
        done=len(points),
        total=question.size,
        text=progress.text,
        points=new,
        state=json_bytes(state),
    )


def _sweep_result(context: TaskContext, state: dict[str, Any]) -> QuantumResult:
    points = [state["points"][str(index)] for index in range(context.question.size)]
    answer = _what_if_result(context.question, state["base"], points)
    return QuantumResult(
        done=len(points), total=len(points), text="done", result=json_bytes(answer)
    )


def _what_if_result(question: Question, base: Any, points: list[Any]) -> dict[str, Any]:
    """Return the JSON of a WhatIfResult, made of its parts. Raise InputError as ``whatif`` does."""
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
    """Return the JSON of ``whatif``; keep the unchanged prediction, which every step of a dragged
    slider needs again."""
    assert isinstance(task.request, WhatIfRequest)
    question = ask(task.request, task.plan_file, task.shelf)
    unchanged = replace(task, request=replace(task.request, change=(), sweep=None))
    base = _base(unchanged.to_bytes(), question)
    points = [to_json(question.point(index)) for index in range(question.size)]
    return _what_if_result(question, base, points)


@cached(LRUCache(maxsize=32), key=lambda task, question: sha256_hex(task), lock=Lock())
def _base(task: bytes, question: Question) -> Any:
    return to_json(question.base())


JOBS: Final[dict[str, Callable[[TaskContext, dict[str, Any], Quantum], QuantumResult]]] = {
    "tune": _tune,
    "layout": _layout,
    "sweep": _sweep,
}
QUICK: Final[dict[str, Callable[[Task], Any]]] = {"simulate": _simulate, "whatif": _whatif}
