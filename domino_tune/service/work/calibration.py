"""What a calibration computes: a profile fitted to measured runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from domino_tune.requests import SimulateRequest
from domino_tune.results import to_json
from domino_tune.service.encoding import json_bytes
from domino_tune.service.work.reporting import Outcome, Reporter, Step
from domino_tune.service.work.task import Task, profile_of, request_of
from domino_tune.store.profiles import dump_profile
from domino_tune.verbs.calibrate import (
    AskedRun,
    calibrated,
    check_base,
    check_predictable,
    measured,
    planned,
)
from domino_tune.verbs.measured_runs import merged_samples
from simulator.errors import DominoTuneError, InputError

TOLD: Final = "of a request"
"""Where the runs come from, in the profile's provenance."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def check_calibration(task: Task) -> None:
    """Raise the DominoTuneError of a profile that cannot be calibrated, or of a run that cannot be
    predicted, placed in the request."""
    check_base(profile_of(task.profile))
    found = []
    for index, run in enumerate(_runs(task)):
        try:
            made = planned(run, task.shelf)
            check_predictable(made)
        except DominoTuneError as error:
            raise error.at("runs", *([] if task.request["listed"] is False else [index])) from None
        found.append(made)
    try:
        merged_samples(found)
    except DominoTuneError as error:
        raise error.at("runs") from None


def calibrate(task: Task, reporter: Reporter) -> Outcome:
    """Fit the profile. Raise InputError for runs that contradict each other, or take longer than a
    job may compute."""
    runs = [measured(one, task.shelf) for one in _runs(task)]
    counted = _Counted(reporter, len(runs))
    profile = profile_of(task.profile)
    made, result = calibrated(profile, task.request["name"], runs, TOLD, counted)
    answer = to_json(result)
    del answer["path"]
    done = counted.done
    return Outcome(
        result=json_bytes(answer), files={"profile": dump_profile(made)},
        last=Step(done=done, total=done, text="done", left=0),
    )  # fmt: skip


class _Counted:
    """An Ahead that computes in turn, and counts."""

    def __init__(self, reporter: Reporter, runs: int) -> None:
        self._reporter = reporter
        self._runs = runs
        self.done = 0

    def __call__(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Callable[[], Result]]]:
        """Go through ``items`` in order."""
        for item in items:
            yield item, lambda item=item: self._result(function, item)  # type: ignore[misc]

    def _result(self, function: Callable[[Item], Any], item: Item) -> Any:
        if self._reporter.stop == "time":
            raise InputError(
                "These runs take longer to fit than a job may compute; give fewer of them, or "
                "shorter ones: fewer layers, or fewer micro-batches."
            )
        found = function(item)
        self.done += 1
        if self._reporter.due:
            text = f"{self.done:,} predictions of {self._runs} runs"
            self._reporter.tell(Step(done=self.done, text=text))
        return found


def _runs(task: Task) -> list[AskedRun]:
    return [_run(one) for one in task.request["runs"]]


def _run(parsed: Mapping[str, Any]) -> AskedRun:
    request = request_of(SimulateRequest, parsed["request"])
    return AskedRun(**{**parsed, "request": request})
