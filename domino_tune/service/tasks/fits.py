"""Whether a search may fit the memory; if not, what would: a question of seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from domino_tune.requests import TuneRequest
from domino_tune.service.tasks.task import Task
from domino_tune.store.shelf import Shelf
from domino_tune.verbs import layouts
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.scale import no_layout, requests_of
from domino_tune.verbs.tune import cases_to_tune, check_some_may_fit
from simulator.errors import DominoTuneError


def check_fits(task: Task) -> None:
    """Raise the DominoTuneError of a search whose plans all do not fit."""
    assert isinstance(task.request, TuneRequest)
    CHECKS[task.kind](task.request, task.shelf)


def _tune(request: TuneRequest, shelf: Shelf) -> None:
    cases = cases_to_tune(resolve(request, shelf=shelf), request.tune_also)
    check_some_may_fit(cases, request)


def _layout(request: TuneRequest, shelf: Shelf) -> None:
    layouts.check_may_fit(layouts.base_of(request, shelf), request)


def _scale(request: TuneRequest, shelf: Shelf) -> None:
    """Check until a number of GPUs may have a layout."""
    errors: dict[str, DominoTuneError] = {}
    for asked in requests_of(request):
        try:
            _layout(asked, shelf)
            return
        except DominoTuneError as error:
            errors[str(error)] = error
    raise no_layout(errors)


CHECKS: Final[Mapping[str, Callable[[TuneRequest, Shelf], None]]] = {
    "tune": _tune, "layout": _layout, "scale": _scale,
}  # fmt: skip
