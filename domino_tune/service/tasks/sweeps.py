"""Sweeps: the points of a what-if one by one, each with a search of its own where it is retuned."""

from __future__ import annotations

from typing import Any

from domino_tune.results.json_form import to_json
from domino_tune.search import Record
from domino_tune.service.encoding import json_bytes
from domino_tune.service.tasks.context import TaskContext
from domino_tune.service.tasks.quantum import (
    LastProgress,
    PausedError,
    Quantum,
    QuantumResult,
    StopReason,
)
from domino_tune.service.tasks.search_state import record_from_json, record_to_json
from domino_tune.verbs.whatif import Question, best_plan, best_so_far, check_points
from simulator.case import Case


def sweep(
    context: TaskContext, state: dict[str, Any], quantum: Quantum, stopped_by: StopReason | None
) -> QuantumResult:
    """Compute one point, in as many quanta as it takes. The unchanged case comes first. With
    ``stopped_by`` the best plan of a point that was begun is the best so far."""
    question, progress = context.question, LastProgress()
    points = state["points"]
    missing = [index for index in range(question.size) if str(index) not in points]
    stops = stopped_by and points and "record" not in state
    if "base" in state and (not missing or stops):
        whole = not missing and "cut" not in state
        return _sweep_result(context, state, None if whole else stopped_by)
    index = missing[0] if "base" in state else None
    record = Record()

    def best(case: Case) -> Any:
        plans = context.point_plans(case)
        if stored := state.pop("record", None):
            known = record_from_json(stored, plans.space)
            record.history, record.pruned = known.history, known.pruned
        if stopped_by and record.trials:
            state["cut"] = True
            return best_so_far(plans, record)
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
    answer = what_if_result(context.question, state["base"], points, stopped_by)
    return QuantumResult(
        done=len(points), total=size, text="done", left=0, stopped_by=stopped_by,
        result=json_bytes(answer),
    )  # fmt: skip


def what_if_result(
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
