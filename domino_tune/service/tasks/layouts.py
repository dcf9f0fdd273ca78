"""Searches of layouts, at one number of GPUs or at several in turn."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from domino_tune.results.json_form import to_json
from domino_tune.results.layouts import LayoutsResult
from domino_tune.results.scale import ScalePoint
from domino_tune.search.layouts import LayoutSearch
from domino_tune.service.encoding import json_bytes
from domino_tune.service.tasks.context import TaskContext
from domino_tune.service.tasks.found import found
from domino_tune.service.tasks.quantum import (
    LastProgress,
    PausedError,
    Quantum,
    QuantumResult,
    StopReason,
)
from domino_tune.service.tasks.search_state import layouts_to_json, restore_layouts
from domino_tune.verbs.layouts import LayoutSpace, best_so_far, conclude
from domino_tune.verbs.scale import no_layout, point_of, result_of
from simulator.errors import DominoTuneError, InfeasiblePlanError

GAINS: Final = ("domino_gain", "domino_gain_here")
"""Fields of a layout that are unknown until the search has ended."""


def layout(
    context: TaskContext, state: dict[str, Any], quantum: Quantum, stopped_by: StopReason | None
) -> QuantumResult:
    """Search layouts for one quantum, as ``work.advance`` describes."""
    with context.alone:
        space, progress = context.layouts, LastProgress()
        known = state.get("layouts", [])
        search, answer = _searched(space, known, progress, quantum, stopped_by)
        if answer is not None:
            return found(context, answer, search.evaluations, stopped_by)
        best = to_json(best_so_far(search))
        return QuantumResult(
            done=search.evaluations,
            text=progress.text,
            left=search.left,
            best=best and {name: best[name] for name in best if name not in GAINS},
            state=json_bytes({"layouts": layouts_to_json(space.candidates)}),
        )


def scale(
    context: TaskContext, state: dict[str, Any], quantum: Quantum, stopped_by: StopReason | None
) -> QuantumResult:
    """Search layouts at one number of GPUs for one quantum; its point is known when that search
    ends. With ``stopped_by``, return the best so far.
    """
    numbers, points = context.numbers, state["points"]
    missing = [index for index in range(len(numbers)) if str(index) not in points]
    stops = stopped_by and "layouts" not in state and _first(points) is not None
    if not missing or stops:
        cut = any(one["optimality"] == "best_found" for one in points.values())
        return _scale_result(context, points, stopped_by if missing or cut else None)
    index, new, progress = missing[0], None, LastProgress()
    asked = numbers[index]
    with context.alone:
        try:
            space = context.layouts_at(asked)
            known = state.pop("layouts", [])
            _, answer = _searched(space, known, progress, quantum, stopped_by)
            if answer is None:
                state["layouts"] = layouts_to_json(space.candidates)
            else:
                new = point_of(answer, _first(points))
        except DominoTuneError as error:
            new = ScalePoint(gpus=asked.gpus or 0, error=str(error))
    if new is not None:
        points[str(index)] = to_json(new)
    return QuantumResult(
        done=len(points),
        total=len(numbers),
        text=f"{asked.gpus:,} GPUs: {progress.text}",
        left=len(numbers) - len(points),
        points=() if new is None else ((index, json_bytes(points[str(index)])),),
        state=json_bytes(state),
    )


def _searched(
    space: LayoutSpace,
    known: list[Any],
    progress: LastProgress,
    quantum: Quantum,
    stopped_by: StopReason | None,
) -> tuple[LayoutSearch, LayoutsResult | None]:
    """Continue a search from the results in ``known``. Return it, and its answer if it has ended,
    or is stopped with a result.
    """
    restore_layouts(known, space.candidates)
    search, ended = LayoutSearch(space.candidates, progress, pause=quantum), False
    if stopped_by and search.kept():
        return search, conclude(space, search, stopped_by=stopped_by)
    with suppress(PausedError):
        search.run()
        ended = True
    if ended and not (quantum.over and quantum.steps):  # the rest takes a quantum of its own
        return search, conclude(space, search)
    return search, None


def _first(points: dict[str, Any]) -> float | None:
    """Return the tokens/s/GPU at the first number that has a layout, or None."""
    for index in sorted(points, key=int):
        if points[index]["layout"] is not None:
            return float(points[index]["layout"]["tokens_per_second_per_gpu"])
    return None


def _scale_result(
    context: TaskContext, points: dict[str, Any], stopped_by: StopReason | None
) -> QuantumResult:
    shown = [points[index] for index in sorted(points, key=int)]
    if _first(points) is None:
        errors = {one["error"]: InfeasiblePlanError(one["error"], reason="memory") for one in shown}
        raise no_layout(errors)
    empty = result_of((), context.scaled, context.tuning, stopped_by=stopped_by)
    answer = {**to_json(empty), "points": shown}
    del answer["seconds"]
    return QuantumResult(
        done=len(shown), total=len(context.numbers), text="done", left=0, stopped_by=stopped_by,
        result=json_bytes(answer),
    )  # fmt: skip
