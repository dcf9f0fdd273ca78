"""Quanta of jobs: wherever they end and wherever they run, the result has the same bytes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domino_tune.requests import TuneRequest, WhatIfRequest
from domino_tune.results.json_form import to_json
from domino_tune.service.tasks import work
from domino_tune.service.tasks.task import Task
from domino_tune.store.profiles import load_profile
from domino_tune.store.shelf import Pinned
from domino_tune.verbs.layouts import tune_layouts
from domino_tune.verbs.resolve import resolve
from domino_tune.verbs.scale import tune_scale
from domino_tune.verbs.tune import tune
from domino_tune.verbs.whatif import whatif
from simulator.errors import InfeasiblePlanError, InputError
from simulator.peak import least_peak_bytes
from tests.support.room import with_room
from tests.support.tasks import (
    EVERYTHING,
    LAYOUTS,
    LONG,
    SCALE,
    SHELF,
    SWEEPS,
    TUNES,
    WORKLOAD,
    finish,
    layout_task,
    paused,
    paused_everywhere,
    tune_task,
    undisturbed,
)


@pytest.mark.parametrize("name", [name for name in EVERYTHING if name not in LONG])
def test_paused_after_every_quantum_it_gives_the_same(name: str) -> None:
    task = EVERYTHING[name]
    expected = undisturbed(task)
    last, before = paused(task)
    assert before
    assert last.result == expected.result
    assert last.artifacts == expected.artifacts


def of_the_best(artifacts: Iterable[str]) -> set[str]:
    """Return the names of an answer's files without the plans of rivals."""
    return {name for name in artifacts if not name.startswith("plan-")}


VERBS: dict[str, Callable[..., Any]] = {"tune": tune, "layout": tune_layouts, "scale": tune_scale}


@pytest.mark.parametrize(
    "name",
    ["exhaustive", "micro-batches", "scale", *(f"layouts of {name}" for name in LAYOUTS)],
)
def test_a_job_gives_what_the_verb_gives(name: str) -> None:
    task = Task.from_bytes(EVERYTHING[name])
    answer = to_json(VERBS[task.kind](task.request, shelf=SHELF))
    del answer["seconds"]
    quantum = undisturbed(EVERYTHING[name])
    assert json.loads(quantum.result or b"") == json.loads(json.dumps(answer))
    if task.kind == "scale":
        assert [one["layout"] is None for one in answer["points"]] == [False, True, False]
    else:
        assert of_the_best(quantum.artifacts) == {"plan", "report", "trace"}


def test_a_scale_goes_on_after_the_points_that_are_known() -> None:
    _, before = paused(SCALE)
    points = [point for quantum in before for point in quantum.points]
    assert [index for index, _ in points] == [0, 1, 2]
    work.forget()
    assert finish(SCALE, work.resume(points[:2]), 1e9).result == undisturbed(SCALE).result
    assert [quantum.done for quantum in before] == sorted(quantum.done for quantum in before)
    assert before[-1].left == 0


def test_a_stopped_scale_has_the_numbers_so_far_and_the_best_of_the_last() -> None:
    _, before = paused(SCALE)
    whole = json.loads(undisturbed(SCALE).result or b"")
    began = next(one for one in before if one.done == 2 and b'"layouts"' in one.state)
    for after, known in ((before[0], 1), (next(q for q in before if q.done == 1), 1), (began, 3)):
        state, stopped = after.state, None
        while stopped is None or stopped.result is None:
            stopped = work.advance(SCALE, state, 0.0, "user")
            state = stopped.state
        result = json.loads(stopped.result)
        assert len(result["points"]) == known
        assert result["stopped_by"] == stopped.stopped_by == "user"
        if known == 3:
            best = result["points"][2]["layout"]["iteration_ms"]
            assert best >= whole["points"][2]["layout"]["iteration_ms"]


def test_a_scale_without_any_layout_fails() -> None:
    machine = replace(SHELF.profile("").machine, gpu_memory_gib=1e-3)
    small = Pinned(replace(SHELF.profile(""), machine=machine), SHELF.model(""))
    data = Task.of("scale", Task.from_bytes(SCALE).request, small).to_bytes()
    with pytest.raises(InfeasiblePlanError, match="No number of GPUs in --sweep has a layout"):
        finish(data, work.resume(), 0.0)


def test_layouts_go_on_from_any_state_in_any_order() -> None:
    """A worker that went further, for another runner, takes up an older state as it is."""
    task = LAYOUTS["two GPUs"]
    expected = undisturbed(task)
    _, before = paused(task)
    assert [quantum.done for quantum in before] == list(range(1, len(before) + 1))
    for older in (before[len(before) // 2], before[0]):
        found = finish(task, older.state, 1e9)
        assert (found.result, found.artifacts) == (expected.result, expected.artifacts)
        assert found.done == expected.done


def test_the_best_layout_so_far_is_told() -> None:
    last, before = paused(LAYOUTS["two GPUs"])
    times = [quantum.best["iteration_ms"] for quantum in before if quantum.best]
    assert len(times) == len(before)
    assert times == sorted(times, reverse=True)
    assert all(quantum.text and quantum.total is None for quantum in before)
    best = json.loads(last.result or b"")["layouts"][0]
    assert json.loads(json.dumps(before[-1].best)).items() <= best.items()
    assert json.loads(json.dumps(last.best)) == best
    assert last.total == last.done


def test_layouts_that_fit_nowhere_fail_the_same_however_they_are_cut() -> None:
    task = layout_task(overrides=("num_hidden_layers=4096", "hidden_size=8192"))
    for budget_s in (0.0, 1e9):
        work.forget()
        with pytest.raises(InfeasiblePlanError, match=r"No layout of .* fits the memory of"):
            finish(task, work.resume(), budget_s)


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_gives_what_the_service_gives(name: str) -> None:
    task = Task.from_bytes(SWEEPS[name])
    assert isinstance(task.request, WhatIfRequest)
    answer = to_json(whatif(task.request, shelf=SHELF))
    assert undisturbed(SWEEPS[name]).result == json.dumps(answer, separators=(",", ":")).encode()


def test_progress_counts_up_to_the_best() -> None:
    last, before = paused(TUNES["random"])
    assert [quantum.done for quantum in before] == list(range(1, 13))
    assert {quantum.total for quantum in before} == {12}
    times = [quantum.best["iteration_ms"] for quantum in before if quantum.best]
    assert len(times) == len(before)
    best = json.loads(last.result or b"")["best"]
    assert before[-1].best is not None
    assert before[-1].best.items() <= best.items()
    assert last.best == best


def test_a_sweep_goes_on_after_the_points_that_are_known() -> None:
    task = SWEEPS["links"]
    _, before = paused(task)
    points = [point for quantum in before for point in quantum.points]
    assert [index for index, _ in points] == [0, 1, 2, 3]
    for known in range(5):
        last, rest = paused_everywhere(task, work.resume(points[:known]), forget=True)
        assert last.result == undisturbed(task).result
        assert [point for quantum in rest for point in quantum.points] == points[known:]


def test_what_cannot_run_fails_the_same_however_it_is_cut() -> None:
    """A GPU that two row slices fill to the last byte: the plans that this seed draws have one."""
    request = TuneRequest(**{**WORKLOAD, "search": "random", "trials": 5, "seed": 1564})
    case = resolve(request, shelf=SHELF)
    machine = with_room(case, least_peak_bytes(case)).profile.machine
    small = Pinned(replace(SHELF.profile(""), machine=machine), SHELF.model(""))
    data = Task.of("tune", request, small).to_bytes()
    messages = []
    for budget_s in (0.0, 1e9):
        work.forget()
        with pytest.raises(InfeasiblePlanError) as caught:
            finish(data, work.resume(), budget_s)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "None of the 5 plans tried" in messages[0]


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("name", ["exhaustive", "micro-batches", "layouts of two GPUs"])
def test_stopped_it_gives_the_best_so_far(name: str) -> None:
    task = EVERYTHING[name]
    _, before = paused(task)
    after = before[len(before) // 2]
    for forget in (False, True):
        if forget:
            work.forget()
        last = work.advance(task, after.state, 1e9, "user")
        assert last.result is not None
        result = json.loads(last.result)
        assert (result["stopped_by"], last.stopped_by) == ("user", "user")
        assert result["optimality"] == "best_found"
        assert result["evaluations"] == last.done == after.done
        best = result["best"] if "best" in result else result["layouts"][0]
        assert after.best is not None
        assert json.loads(json.dumps(after.best)).items() <= best.items()
        assert of_the_best(last.artifacts) == {"plan", "report", "trace"}


def test_stopped_before_anything_is_found_it_gives_the_first() -> None:
    task = TUNES["exhaustive"]
    first = work.advance(task, work.resume(), 0.0, "time")
    assert (first.result, first.done) == (None, 1)
    last = work.advance(task, first.state, 0.0, "time")
    result = json.loads(last.result or b"")
    assert (result["stopped_by"], result["evaluations"], last.total) == ("time", 1, None)


def test_a_stopped_sweep_has_the_points_so_far() -> None:
    task = SWEEPS["links"]
    _, before = paused(task)
    whole = json.loads(undisturbed(task).result or b"")
    assert whole["stopped_by"] is None
    for quantum in before[2:-1]:
        last = work.advance(task, quantum.state, 1e9, "user")
        result = json.loads(last.result or b"")
        assert result["points"] == whole["points"][: quantum.done]
        assert (result["stopped_by"], result["base"]) == ("user", whole["base"])
        assert (last.done, last.total) == (quantum.done, 4)
    ended = work.advance(task, before[-1].state, 1e9, "user")
    assert (ended.result, ended.stopped_by) == (undisturbed(task).result, None)


def test_what_is_left_is_at_least_what_comes() -> None:
    for name in ("exhaustive", "random", "layouts of two GPUs", "sweep of links"):
        last, before = paused(EVERYTHING[name])
        for quantum in before:
            assert quantum.left is None or quantum.done + quantum.left >= last.done
            assert quantum.seconds > 0
        assert last.left == 0
        if name != "layouts of two GPUs":  # ten layouts come first
            assert before[0].left is not None


@pytest.mark.parametrize("name", ["random", "sweep of links"])
def test_a_worker_keeps_a_task_until_it_ends(name: str) -> None:
    """What a search has looked up and bounded takes tens of MiB."""
    task = EVERYTHING[name]
    work.forget()
    begun = work.advance(task, work.resume(), 0.0)
    assert len(work.OPENED) == 1
    paused_everywhere(task, begun.state, forget=False)
    assert not work.OPENED


def test_a_task_is_all_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither names nor files are looked up when it runs."""
    monkeypatch.setenv("DOMINO_TUNE_HOME", str(tmp_path))
    task = tune_task(profile="gone", model="gone", search="random", trials=2)
    work.forget()
    result = json.loads(finish(task, work.resume(), 1e9).result or b"")
    assert result["simulation"]["model"]["name"] == "tiny"


def test_equal_tasks_are_equal_bytes() -> None:
    again = Task.from_bytes(tune_task())
    assert again.to_bytes() == tune_task()
    assert again.profile == load_profile("h100-dgx")


def test_overrides_are_made_once() -> None:
    task = tune_task(overrides=("num_hidden_layers=3",), search="random", trials=1)
    result = json.loads(finish(task, work.resume(), 1e9).result or b"")
    assert result["simulation"]["model"]["num_hidden_layers"] == 3
    assert result["simulation"]["model"]["name"] == "tiny (num_hidden_layers=3)"


@pytest.mark.parametrize("missing", ["model", "profile", "tp"])
def test_a_task_needs_what_its_request_needs(missing: str) -> None:
    with pytest.raises(InputError, match=f"--{missing}"):
        tune_task(**{missing: None})


def test_errors_travel_between_processes() -> None:
    error = pickle.loads(pickle.dumps(InfeasiblePlanError("too large", reason="memory")))
    assert isinstance(error, InfeasiblePlanError)
    assert (str(error), error.reason) == ("too large", "memory")
