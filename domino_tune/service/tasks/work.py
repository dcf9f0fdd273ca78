"""The work of jobs, in quanta: pure functions that any executor can run, anywhere, and again.

A quantum goes on from the state that the one before returned. The result depends on the task alone,
not on where the quanta ended or where they ran: a job whose workers were killed ends with the same
bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any, Final

from cachetools import LRUCache, cached

from domino_tune.requests import WhatIfRequest
from domino_tune.results import LayoutsResult, TuneResult, to_json
from domino_tune.search import DEFAULT_TRIALS, Record, choose_best
from domino_tune.search.layouts import LayoutSearch
from domino_tune.search.simulated import CasePlans
from domino_tune.service.encoding import json_bytes, sha256_hex
from domino_tune.service.tasks.calibration import KIND as CALIBRATION
from domino_tune.service.tasks.calibration import CalibrationTask
from domino_tune.service.tasks.context import TaskContext
from domino_tune.service.tasks.quantum import PausedError, Quantum, QuantumResult, StopReason
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
from domino_tune.verbs.tune import AllSearched, conclude, found_so_far, search_all
from domino_tune.verbs.whatif import Question, ask, best_plan, check_points
from simulator.case import Case
from simulator.errors import unknown_name
from simulator.units import MS_PER_NS

GAINS: Final = ("domino_gain", "domino_gain_here")
"""Fields of a layout that are unknown until the search has ended."""


class LastProgress:
    """A Progress that keeps its last line."""

    text = ""

    def __call__(self, text: str) -> None:
        """Keep the line."""
        self.text = text


def advance(
    task: bytes, state: bytes, budget_s: float, stopped_by: StopReason | None = None
) -> QuantumResult:
    """Compute one quantum of a job; ``state`` comes from the quantum before, or from ``resume``.

    Take about ``budget_s`` seconds, longer where one step does. With ``stopped_by`` the result is
    made of what ``state`` holds, as soon as that is something. Raise the DominoTuneError that the
    job fails with.
    """
    began = time.perf_counter()
    context, quantum = _context(task), Quantum(budget_s)
    if isinstance(context, CalibrationTask):
        made = context.advance(json.loads(state), quantum, stopped_by)
    else:
        made = JOBS[context.task.kind](context, json.loads(state), quantum, stopped_by)
    return replace(made, seconds=time.perf_counter() - began)


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
def _context(task: bytes) -> TaskContext | CalibrationTask:
    parsed = json.loads(task)
    if parsed["kind"] == CALIBRATION:
        return CalibrationTask.from_json(parsed)
    return TaskContext(task=Task.from_json(parsed))


def _tune(
    context: TaskContext, state: dict[str, Any], quantum: Quantum, stopped_by: StopReason | None
) -> QuantumResult:
    request, cases, progress = context.tuning, context.cases, LastProgress()
    stored = state.get("records") or [None] * len(cases)
    records = [
        record_from_json(one, plans.space) if one and one["history"] else Record()
        for one, plans in zip(stored, cases, strict=True)
    ]
    if stopped_by and any(record.trials for record in records):
        searched = found_so_far(cases, records)
        result = conclude(searched, request, progress, stopped_by=stopped_by)
        return _found(context, result, sum(len(record.history) for record in records), stopped_by)
    ended: AllSearched | None = None
    with suppress(PausedError):
        ended = search_all(cases, request, progress, records=records, pause=quantum)
    done = sum(len(record.history) for record in records)
    if ended is None or (quantum.over and quantum.steps):  # the rest takes a quantum of its own
        limit = request.trials or (None if request.method == "exhaustive" else DEFAULT_TRIALS)
        total = limit and limit * len(cases)
        return QuantumResult(
            done=done,
            total=total,
            text=progress.text,
            left=total - done if total else _left(cases, records),
            best=_best_so_far(context, records),
            state=json_bytes({"records": [record_to_json(record) for record in records]}),
        )
    return _found(context, conclude(ended, request, progress), done)


def _left(cases: Sequence[CasePlans], records: Sequence[Record]) -> int | None:
    """Return how many plans at most are left of exhaustive searches. A case that was not begun
    counts as those before it; None before the first trial."""
    begun = [(one, record) for one, record in zip(cases, records, strict=True) if record.history]
    left = [plans.problem.left(record) for plans, record in begun]
    known = [many for many in left if many is not None]
    if not known or len(known) < len(left):
        return None
    each = (sum(known) + sum(len(record.history) for _, record in begun)) / len(begun)
    return sum(known) + round(each * (len(cases) - len(begun)))


def _found(
    context: TaskContext,
    result: TuneResult | LayoutsResult,
    done: int,
    stopped_by: StopReason | None = None,
) -> QuantumResult:
    """Return the last quantum of a search, after ``done`` evaluations."""
    answer = to_json(result)
    del answer["seconds"]  # of this run, not of the task
    return QuantumResult(
        done=done,
        total=None if stopped_by else done,
        text="done",
        left=0,
        stopped_by=stopped_by,
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


def _layout(
    context: TaskContext, state: dict[str, Any], quantum: Quantum, stopped_by: StopReason | None
) -> QuantumResult:
    with context.alone:
        space, progress, ended = context.layouts, LastProgress(), False
        restore_layouts(state.get("layouts", []), space.candidates)
        search = LayoutSearch(space.candidates, progress, pause=quantum)
        if stopped_by and search.kept():
            result = conclude_layouts(space, search, stopped_by=stopped_by)
            return _found(context, result, search.evaluations, stopped_by)
        with suppress(PausedError):
            search.run()
            ended = True
        if ended and not (quantum.over and quantum.steps):
            return _found(context, conclude_layouts(space, search), search.evaluations)
        best = to_json(best_so_far(search))
        return QuantumResult(
            done=search.evaluations,
            text=progress.text,
            left=search.left,
            best=best and {name: best[name] for name in best if name not in GAINS},
            state=json_bytes({"layouts": layouts_to_json(space.candidates)}),
        )


def _sweep(
    context: TaskContext, state: dict[str, Any], quantum: Quantum, stopped_by: StopReason | None
) -> QuantumResult:
    """Compute one point, in as many quanta as it takes. The unchanged case comes first."""
    question, progress = context.question, LastProgress()
    points = state["points"]
    missing = [index for index in range(question.size) if str(index) not in points]
    if "base" in state and (not missing or (stopped_by and points)):
        return _sweep_result(context, state, stopped_by if missing else None)
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
        left=question.size - len(points),
        points=new,
        state=json_bytes(state),
    )


def _sweep_result(
    context: TaskContext, state: dict[str, Any], stopped_by: StopReason | None
) -> QuantumResult:
    size = context.question.size
    known = [state["points"].get(str(index)) for index in range(size)]
    points = [point for point in known if point is not None]
    answer = _what_if_result(context.question, state["base"], points, stopped_by)
    return QuantumResult(
        done=len(points), total=size, text="done", left=0, stopped_by=stopped_by,
        result=json_bytes(answer),
    )  # fmt: skip


def _what_if_result(
    question: Question, base: Any, points: list[Any], stopped_by: StopReason | None = None
) -> dict[str, Any]:
    """Return the JSON of a WhatIfResult, made of its parts. Raise InputError as ``whatif`` does."""
    check_points([point["error"] or "" for point in points])
    return {
        "base": base,
        "points": points,
        "sweep": question.swept or None,
        "retuned": question.retune,
        "notes": list(question.case.notes),
        "stopped_by": stopped_by,
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


JOBS: Final[
    dict[
        str,
        Callable[[TaskContext, dict[str, Any], Quantum, StopReason | None], QuantumResult],
    ]
] = {
    "tune": _tune,
    "layout": _layout,
    "sweep": _sweep,
}
QUICK: Final[dict[str, Callable[[Task], Any]]] = {"simulate": _simulate, "whatif": _whatif}
