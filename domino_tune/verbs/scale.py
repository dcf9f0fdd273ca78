"""scale: the best layout at each number of GPUs, for the same global batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from domino_tune.base.progress import Progress, no_progress
from domino_tune.requests import LayoutRequest, ScaleRequest
from domino_tune.results.layouts import LayoutsResult, ScalePoint, ScaleResult
from domino_tune.store.plans import ProfileRef
from domino_tune.store.shelf import DISK, Shelf
from domino_tune.verbs.layout_space import base_of
from domino_tune.verbs.layouts import tune_layouts
from simulator.case import Case
from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError

T = TypeVar("T")
DRAWN: Final = "Trace and page show"
"""How warnings about drawings begin; a sweep has no drawings."""


def tune_scale(
    request: ScaleRequest, progress: Progress = no_progress, *, shelf: Shelf = DISK
) -> ScaleResult:
    """Return the best layout of the request's model at each number of GPUs that it names.

    The point of a number without a layout holds the error. Raise InputError, and the
    error of the last number if none has a layout.
    """
    began = time.perf_counter()
    points = points_of(
        request, lambda asked: tune_layouts(asked, _told(progress, asked.gpus or 0), shelf=shelf)
    )
    made = result_of(tuple(points), scale_base(request, shelf), request)
    return replace(made, seconds=time.perf_counter() - began)


def points_of(
    request: ScaleRequest, search: Callable[[LayoutRequest], LayoutsResult]
) -> Iterator[ScalePoint]:
    """Yield the point of each number, as ``search`` finds it. Raise as ``tune_scale`` does."""
    errors: dict[str, DominoTuneError] = {}
    first: float | None = None
    for asked in requests_of(request):
        try:
            answer = search(asked)
        except DominoTuneError as error:
            errors[str(error)] = error
            yield ScalePoint(gpus=asked.gpus or 0, error=str(error))
        else:
            yield _point_of(answer, first)
            first = first or answer.layouts[0].tokens_per_second_per_gpu
    if first is None:
        raise _no_layout(errors)


def result_of(
    points: Sequence[ScalePoint],
    base: Case,
    request: ScaleRequest,
    *,
    stopped_by: str | None = None,
) -> ScaleResult:
    """Return the answer; ``base`` is that of ``scale_base``, and ``seconds`` is 0."""
    return ScaleResult(
        points=tuple(points),
        model=base.model,
        profile=ProfileRef.of(base.profile),
        seq_length=base.workload.seq_length,
        global_batch_size=request.global_batch_size or 0,
        seconds=0.0,
        stopped_by=stopped_by,
    )


def scale_base(request: ScaleRequest, shelf: Shelf = DISK) -> Case:
    """Return the case that the layouts divide, at the first number that can have some. Raise as
    ``tune_scale`` does, and the last number's InputError if no number can."""
    return at_first(request, lambda asked: base_of(asked, shelf))


def at_first(request: ScaleRequest, ask: Callable[[LayoutRequest], T]) -> T:
    """Return what ``ask`` does at the first number that can have layouts. Raise the last number's
    error if no number can."""
    errors: dict[str, DominoTuneError] = {}
    for asked in requests_of(request):
        try:
            return ask(asked)
        except DominoTuneError as error:
            errors[str(error)] = error
    raise _no_layout(errors)


def requests_of(request: ScaleRequest) -> tuple[LayoutRequest, ...]:
    """Return the request of each number."""
    given = {name: value for name, value in request if name != "gpus"}
    return tuple(LayoutRequest(**given, gpus=gpus) for gpus in request.gpus)


def _told(progress: Progress, gpus: int) -> Progress:
    return lambda message: progress(f"{gpus:,} GPUs: {message}")


def _point_of(answer: LayoutsResult, first: float | None) -> ScalePoint:
    """Return the point of one number. ``first``: tokens/s/GPU at the first number with a layout,
    None if this is the first."""
    layout, gpus = answer.layouts[0], answer.gpus
    each = layout.tokens_per_second_per_gpu
    return ScalePoint(
        gpus=gpus,
        layout=layout,
        tokens_per_second=each * gpus,
        scaling_efficiency=each / (first or each),
        best_without_domino=answer.best_without_domino,
        optimality=answer.optimality,
        warnings=tuple(text for text in answer.best.warnings if not text.startswith(DRAWN)),
    )


def _no_layout(errors: Mapping[str, DominoTuneError]) -> DominoTuneError:
    """Return the error of a sweep without a layout: the last number's."""
    text, last = list(errors.items())[-1]
    if len(errors) == 1:
        return last
    message = f"No number of --gpus has a layout; the last: {text}"
    if isinstance(last, InfeasiblePlanError):
        return InfeasiblePlanError(message, reason=last.reason)
    return InputError(message)
