"""The last quantum of a search: its result and its files."""

from __future__ import annotations

from domino_tune.results.json_form import to_json
from domino_tune.results.layouts import LayoutsResult
from domino_tune.results.tune import TuneResult
from domino_tune.service.encoding import json_bytes
from domino_tune.service.tasks.context import TaskContext
from domino_tune.service.tasks.quantum import QuantumResult, StopReason


def found(
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
