"""Calibrations in quanta: wherever they end, the result has the same bytes."""

from __future__ import annotations

import json

import pytest

from domino_tune.requests import SimulateRequest
from domino_tune.service.tasks import work
from domino_tune.service.tasks.calibration import CalibrationTask
from domino_tune.store.models import LoadedModel
from domino_tune.store.profiles import load_profile, parse_profile
from domino_tune.verbs.calibrate import AskedRun
from domino_tune.verbs.simulate import simulate
from simulator.errors import InputError
from tests.support.runs import TINY
from tests.support.tasks import SHELF, WORKLOAD, finish


def task(*factors: float) -> bytes:
    """Return a task with runs that took ``factors`` times their predicted time."""
    runs = []
    for number, factor in enumerate(factors):
        sized = {**WORKLOAD, "micro_batch_size": number + 1, "strategy": "megatron"}
        request = SimulateRequest(**sized)
        measured_ms = factor * simulate(request, shelf=SHELF).iteration_ms
        runs.append(AskedRun(label=f"run {number}", request=request, measured_ms=measured_ms))
    return CalibrationTask(
        name="ours", profile=load_profile("h100-dgx"), models={"tiny": LoadedModel(spec=TINY)},
        runs=tuple(runs),
    ).to_bytes()  # fmt: skip


def test_quanta_of_one_prediction_give_the_same_bytes() -> None:
    asked = task(1.1, 1.12, 1.09)
    whole = work.advance(asked, work.resume(), 1e9)
    assert whole.result is not None
    cut = finish(asked, work.resume(), 0.0)
    work.forget()
    again = finish(asked, work.resume(), 0.05)
    assert whole.result == cut.result == again.result
    assert whole.artifacts == cut.artifacts == again.artifacts
    profile = parse_profile(whole.artifacts["profile"], source="the artifact")
    assert (profile.name, profile.calibration and profile.calibration.runs) == ("ours", 3)
    assert "path" not in json.loads(whole.result)


def test_a_state_says_how_far_it_is() -> None:
    first = work.advance(task(1.1, 1.12), work.resume(), 0.0)
    assert (first.result, first.done) == (None, 1)
    second = work.advance(task(1.1, 1.12), first.state, 0.0)
    assert second.done == 2


def test_a_task_is_what_it_was_made_from() -> None:
    made = task(1.1, 1.12)
    assert CalibrationTask.from_json(json.loads(made)).to_bytes() == made


def test_runs_without_an_end_say_so() -> None:
    with pytest.raises(InputError, match="give fewer of them"):
        work.advance(task(1.1, 1.12), work.resume(), 0.0, "time")
