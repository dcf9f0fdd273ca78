"""tune --sweep: the best layout at each number of GPUs, for the same global batch."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from domino_tune.base.progress import Progress, no_progress
from domino_tune.requests import TuneRequest
from domino_tune.results.layouts import LayoutsResult
from domino_tune.results.scale import ScalePoint, ScaleResult
from domino_tune.store.plans import ProfileRef
from domino_tune.store.shelf import DISK, Shelf
from domino_tune.verbs.layouts import base_of, tune_layouts
from simulator.case import Case
from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError

FEWEST: Final = 2
MOST: Final = 32
DRAWN: Final = "Trace and page show"
"""How warnings about drawings begin; a sweep has no drawings."""
NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")


def tune_scale(
    request: TuneRequest, progress: Progress = no_progress, *, shelf: Shelf = DISK
) -> ScaleResult:
    """Return the best layout of the request's model at each number of GPUs of its sweep.

    The point of a number without a layout holds the error. Raise InputError for an option that
    conflicts with ``--sweep``, and the error of the last number if none has a layout.
    """
    began = time.perf_counter()
    points: list[ScalePoint] = []
    errors: dict[str, DominoTuneError] = {}
    first: float | None = None
    for asked in requests_of(request):
        gpus = asked.gpus or 0
        try:
            answer = tune_layouts(asked, _told(progress, gpus), shelf=shelf)
        except DominoTuneError as error:
            errors[str(error)] = error
            points.append(ScalePoint(gpus=gpus, error=str(error)))
        else:
            first = first or answer.layouts[0].tokens_per_second_per_gpu
            points.append(point_of(answer, first))
    if first is None:
        raise no_layout(errors)
    made = result_of(points, scale_base(request, shelf), request)
    return replace(made, seconds=time.perf_counter() - began)


def result_of(
    points: Sequence[ScalePoint],
    base: Case,
    request: TuneRequest,
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


def scale_base(request: TuneRequest, shelf: Shelf = DISK) -> Case:
    """Return the case that the layouts divide, at the first number that can have some. Raise as
    ``tune_scale`` does, and the last number's InputError if no number can.
    """
    errors: dict[str, DominoTuneError] = {}
    for asked in requests_of(request):
        try:
            return base_of(asked, shelf)
        except DominoTuneError as error:
            errors[str(error)] = error
    raise no_layout(errors)


def gpus_of(sweep: str) -> tuple[int, ...]:
    """Return the numbers of GPUs in ``gpus=A,B,C``. Raise InputError for any other text."""
    key, _, listed = sweep.partition("=")
    texts = [text.strip() for text in listed.split(",")]
    numbers = tuple(int(text) for text in texts if NUMBER.fullmatch(text))
    rising = all(low < high for low, high in pairwise(numbers))
    whole = len(numbers) == len(texts) and FEWEST <= len(numbers) <= MOST
    if key.strip() != "gpus" or not whole or not rising:
        raise InputError(
            f"--sweep of tune needs gpus=A,B,C: {FEWEST} to {MOST} rising whole numbers ≥ 1, got "
            f"{sweep!r}; write it like gpus=8,16,32."
        )
    return numbers


def requests_of(request: TuneRequest) -> tuple[TuneRequest, ...]:
    """Return the request for each number. Raise InputError for options that conflict with
    a sweep.
    """
    numbers = gpus_of(request.sweep or "")
    if request.gpus:
        raise InputError("--sweep has the numbers of GPUs; leave out --gpus, or give it alone.")
    if request.objective != "simulate":
        raise InputError("Layouts are searched by simulation: leave out --objective measure.")
    if not request.global_batch_size:
        raise InputError("--sweep also needs --global-batch-size B, in sequences; give both.")
    return tuple(replace(request, sweep=None, gpus=gpus) for gpus in numbers)


def _told(progress: Progress, gpus: int) -> Progress:
    return lambda message: progress(f"{gpus:,} GPUs: {message}")


def point_of(answer: LayoutsResult, first: float | None = None) -> ScalePoint:
    """Return the point of one number. ``first``: tokens/s/GPU at the first number with a layout,
    None if this is the first.
    """
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


def no_layout(errors: Mapping[str, DominoTuneError]) -> DominoTuneError:
    """Return the error of a sweep without a layout: the last number's."""
    text, last = list(errors.items())[-1]
    if len(errors) == 1:
        return last
    message = f"No number of GPUs in --sweep has a layout; the last: {text}"
    if isinstance(last, InfeasiblePlanError):
        return InfeasiblePlanError(message, reason=last.reason)
    return InputError(message)
