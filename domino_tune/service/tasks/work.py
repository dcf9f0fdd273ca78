"""The work of jobs, in quanta: pure functions that any executor can run, anywhere, and again.

A quantum continues from the state that the one before returned. The result depends on the task
alone, not on where the quanta ended or where they ran: a job whose workers were killed ends with
the same bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final

from cachetools import LRUCache, cached

from domino_tune.requests import WhatIfRequest
from domino_tune.results.json_form import to_json
from domino_tune.search import DEFAULT_TRIALS, Record, choose_best
from domino_tune.search.simulated import CasePlans
from domino_tune.service.encoding import json_bytes, sha256_hex
from domino_tune.service.tasks.calibration import CalibrationTask
from domino_tune.service.tasks.context import TaskContext
from domino_tune.service.tasks.fits import check_fits
from domino_tune.service.tasks.found import found
from domino_tune.service.tasks.layouts import layout, scale
from domino_tune.service.tasks.quantum import (
    LastProgress,
    PausedError,
    Quantum,
    QuantumResult,
    StopReason,
)
from domino_tune.service.tasks.search_state import record_from_json, record_to_json
from domino_tune.service.tasks.sweeps import sweep, what_if_result
from domino_tune.service.tasks.task import Task
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.tune import AllSearched, conclude, found_so_far, search_all
from domino_tune.verbs.whatif import About, Question, ask, asked_about
from simulator.errors import unknown_name
from simulator.units import MS_PER_NS


def advance(
    task: bytes, state: bytes, budget_s: float, stopped_by: StopReason | None = None
) -> QuantumResult:
    """Compute one quantum of a job; ``state`` comes from the quantum before, or from ``resume``.

    Take about ``budget_s`` seconds, or longer if a single step does. With ``stopped_by``, build the
    result from ``state`` as soon as it holds one. Raise the DominoTuneError that the job fails
    with.
    """
    began, ended = time.perf_counter(), True
    job, shared = _read(task)
    try:
        made = job.advance(shared, json.loads(state), Quantum(budget_s), stopped_by)
        ended = made.result is not None
    finally:
        if ended:
            _forget(task)
    return replace(made, seconds=time.perf_counter() - began)


def resume(points: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """Return the first state of a job whose ``points`` (index, JSON) are already known."""
    return json_bytes({"points": {index: json.loads(body) for index, body in points}})


def quick(kind: str, task: bytes) -> bytes:
    """Return the result of a task that is not a job, as JSON: ``simulate``, ``whatif``, or
    ``fits``, which has no result and raises an error if the search cannot fit in memory.

    Raise the DominoTuneError that the verb raises.
    """
    if kind not in QUICK:
        raise unknown_name("kind of task", kind, QUICK)
    return json_bytes(to_json(QUICK[kind](Task.from_bytes(task))))


def forget() -> None:
    """Forget all tasks, as if the worker had just started."""
    _read.cache_clear()


def _forget(task: bytes) -> None:
    """Forget a task that has ended: the look-ups and bounds of a search take 20 MiB or more."""
    with _turn:
        OPENED.pop(sha256_hex(task), None)


def import_ahead() -> None:
    """Import what quanta need, so that the first job of a worker does not wait for it."""
    from domino_tune.store.formats import chrome_trace  # noqa: F401
    from domino_tune.verbs import report  # noqa: F401


OPENED: Final[LRUCache[str, Any]] = LRUCache(maxsize=6)
"""The last tasks that were opened and have not ended, by digest, with the data that their quanta
share.
"""
_turn: Final = Lock()


@cached(OPENED, key=sha256_hex, lock=_turn)
def _read(task: bytes) -> tuple[Work, Any]:
    """Return the work of a task, and the data that its quanta share."""
    parsed = json.loads(task)
    job = JOBS[parsed["kind"]]
    return job, job.read(parsed)


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
        return found(context, result, sum(len(record.history) for record in records), stopped_by)
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
    return found(context, conclude(ended, request, progress), done)


def _left(cases: Sequence[CasePlans], records: Sequence[Record]) -> int | None:
    """Return the most plans left of exhaustive searches; None before the first trial. A case that
    has not started counts like the average of the others.
    """
    begun = [(one, record) for one, record in zip(cases, records, strict=True) if record.history]
    left = [plans.problem.left(record) for plans, record in begun]
    known = [many for many in left if many is not None]
    if not known or len(known) < len(left):
        return None
    each = (sum(known) + sum(len(record.history) for _, record in begun)) / len(begun)
    return sum(known) + round(each * (len(cases) - len(begun)))


def _best_so_far(context: TaskContext, records: list[Record]) -> dict[str, Any] | None:
    """Return the best plan as the result will state it; None if no plan was evaluated yet."""
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


def _simulate(task: Task) -> Any:
    return simulate(task.request, plan_file=task.plan_file, shelf=task.shelf)  # type: ignore[arg-type]


def _whatif(task: Task) -> Any:
    """Return the JSON of ``whatif``. Cache what it is about and the unchanged prediction, which
    every step of a dragged slider needs again.
    """
    assert isinstance(task.request, WhatIfRequest)
    unchanged = replace(task, request=replace(task.request, change=(), sweep=None)).to_bytes()
    question = ask(task.request, about=_about(unchanged, task))
    base = _base(unchanged, question)
    points = [to_json(question.point(index)) for index in range(question.size)]
    return what_if_result(question, base, points)


@cached(LRUCache(maxsize=4), key=lambda unchanged, task: sha256_hex(unchanged), lock=Lock())
def _about(unchanged: bytes, task: Task) -> About:
    """Cache a few, like ``profile_of``: each holds a profile, and the look-ups made in it."""
    assert isinstance(task.request, WhatIfRequest)
    return asked_about(task.request, task.plan_file, task.shelf)


@cached(LRUCache(maxsize=32), key=lambda unchanged, question: sha256_hex(unchanged), lock=Lock())
def _base(unchanged: bytes, question: Question) -> Any:
    return to_json(question.base())


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a kind of job: ``read`` turns a task's JSON into the data that its quanta share,
    ``advance`` computes one quantum, like the function of that name.
    """

    read: Callable[[Mapping[str, Any]], Any] = TaskContext.from_json
    advance: Callable[[Any, dict[str, Any], Quantum, StopReason | None], QuantumResult]


JOBS: Final[Mapping[str, Work]] = {
    "tune": Work(advance=_tune),
    "layout": Work(advance=layout),
    "scale": Work(advance=scale),
    "sweep": Work(advance=sweep),
    "calibration": Work(read=CalibrationTask.from_json, advance=CalibrationTask.advance),
}
QUICK: Final[dict[str, Callable[[Task], Any]]] = {
    "simulate": _simulate, "whatif": _whatif, "fits": check_fits,
}  # fmt: skip
