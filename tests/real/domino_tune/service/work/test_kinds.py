"""What each kind of job computes: what the verb does, its steps, and the best so far."""

from __future__ import annotations

import json
from typing import Any

import pytest

from domino_tune.service.work import JobStep, Reporter, StopReason
from domino_tune.service.work.kinds import JOBS, answer, run_job
from domino_tune.service.work.task import Task
from domino_tune.store.plans import plan_from_json
from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError
from tests.support.tasks import TASKS, layout_task, sweep_task, tune_task, undisturbed


class Heard(Reporter):
    """A reporter that is always due, or never."""

    def __init__(self, stop: StopReason | None = None, *, due: bool = True) -> None:
        self.steps: list[JobStep] = []
        self._due = due
        super().__init__(self.steps.append, lambda: stop)

    @property
    def due(self) -> bool:
        return self._due


@pytest.mark.parametrize("name", TASKS)
class TestEveryKind:
    """The contract of a search, whatever it searches."""

    def test_a_task_is_its_bytes(self, name: str) -> None:
        task = Task.from_bytes(TASKS[name])
        assert task.to_bytes() == TASKS[name]
        JOBS[task.kind].check(task)

    def test_it_tells_its_steps_and_they_change_nothing(self, name: str) -> None:
        heard = Heard()
        assert run_job(TASKS[name], heard) == undisturbed(TASKS[name])
        done = [step.done for step in heard.steps]
        assert done == sorted(done)
        assert any(step.text for step in heard.steps)
        json.dumps([step.best for step in heard.steps], allow_nan=False)

    def test_stopped_it_keeps_the_best_so_far(self, name: str) -> None:
        whole, stopped = undisturbed(TASKS[name]), run_job(TASKS[name], Heard("user"))
        assert stopped.stopped_by == "user"
        assert json.loads(stopped.result)["stopped_by"] == "user"
        assert set(stopped.files) <= set(whole.files) | {
            name for name in stopped.files if name.startswith("plan-")
        }
        assert stopped.last.done <= whole.last.done


def test_a_search_has_files() -> None:
    for name in ("tune", "layout"):
        files = undisturbed(TASKS[name]).files
        assert {"plan", "report", "trace"} <= set(files)
        plan_from_json(json.loads(files["plan"]), source="it")
        assert any(one.startswith("plan-") for one in files)


def test_what_takes_long_is_said_before_it_begins() -> None:
    """The list of layouts and their bounds, and the comparison of strategies after each search."""
    for name, words in (("layout", "bounds of 0 of"), ("scale", "2 GPUs: bounds of 0 of")):
        heard = Heard()
        run_job(TASKS[name], heard)
        assert any(step.text.startswith(words) for step in heard.steps)
        assert any("listing the layouts" in step.text for step in heard.steps)
        assert any("comparing strategies" in step.text for step in heard.steps)
    heard = Heard(due=False)  # nothing follows it for long
    run_job(TASKS["tune"], heard)
    assert ["comparing strategies" in step.text for step in heard.steps] == [True]


def test_points_come_one_by_one() -> None:
    for name, count in (("sweep", 4), ("scale", 3)):
        heard = Heard()
        result = json.loads(run_job(TASKS[name], heard).result)
        told = [(index, json.loads(body)) for step in heard.steps for index, body in step.points]
        assert told == list(enumerate(result["points"]))
        assert len(told) == count


def test_what_cannot_be_is_said_at_once() -> None:
    large: dict[str, Any] = {"micro_batch_size": 1 << 18}
    with pytest.raises(InfeasiblePlanError):
        answer("check", tune_task(**large))
    with pytest.raises(InputError, match="divides"):
        answer("check", layout_task(gpus=3, global_batch_size=2, tp=2))
    with pytest.raises(InputError, match="KEY=A,B,C"):
        answer("check", sweep_task(sweep="tp=2,2"))
    plan = json.loads(undisturbed(TASKS["tune"]).files["plan"])
    bad = Task(kind="whatif", request={}, plan={**plan, "checksum": "sha256:0"})
    with pytest.raises(DominoTuneError, match="checksum") as caught:
        _ = bad.plan_file
    assert caught.value.place == ("plan",)
