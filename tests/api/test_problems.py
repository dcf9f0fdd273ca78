"""Errors on the wire: MEANINGS' statuses and titles, fields by their names in bodies."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.problems import Fault, Problem, ProblemError, pointer, problem_of
from domino_tune.base.errors import MEANINGS, NotFoundError, StorageError
from domino_tune.requests import TuneRequest
from domino_tune.requests.problems import plain_problem
from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError


def test_options_are_told_by_their_names_in_bodies() -> None:
    with pytest.raises(InputError) as caught:
        TuneRequest(micro_batch_size=0)
    problem = problem_of(caught.value)
    assert problem.status == 422
    assert problem.title == "Bad input"
    assert problem.type == "urn:domino-tune:bad-input"
    assert problem.detail.startswith("micro_batch_size must be a whole number ≥ 1")
    assert [fault.pointer for fault in problem.errors] == ["#/micro_batch_size"]


def test_every_option_that_is_named_is_pointed_at() -> None:
    problem = problem_of(InputError("Missing --model, --set: give them, or a file with --plan."))
    assert [fault.pointer for fault in problem.errors] == ["#/model", "#/overrides", "#/plan"]
    assert "--" not in problem.detail


def test_an_error_without_a_place_points_at_the_whole_body() -> None:
    problem = problem_of(InfeasiblePlanError("It does not fit.", reason="memory"))
    assert [fault.pointer for fault in problem.errors] == ["#"]
    assert problem.reason == "memory"


def test_a_failed_job_says_what_a_refused_request_says() -> None:
    error = InputError("--tp must divide 12.")
    refused = problem_of(error)
    assert plain_problem(error) == refused.model_dump(exclude_none=True, exclude={"errors"})
    assert refused.detail == "tp must divide 12."


def test_errors_that_are_not_the_bodys_point_nowhere() -> None:
    assert problem_of(NotFoundError("None.")).errors == []
    assert problem_of(StorageError("Full.")).status == 507


@pytest.mark.parametrize("kind", [kind for kind in MEANINGS if issubclass(kind, DominoTuneError)])
def test_every_meaning_has_a_wire_form(kind: type[DominoTuneError]) -> None:
    infeasible = kind is InfeasiblePlanError
    error = InfeasiblePlanError("What.", reason="rows") if infeasible else kind("What.")
    problem = problem_of(error)
    plain = json.loads(problem.to_json())
    assert Problem.model_validate(plain) == problem
    assert (plain["status"], plain["title"]) == MEANINGS[kind][1:]


def test_what_is_empty_is_left_out() -> None:
    error = ProblemError(413, "Too much.", faults=[Fault(pointer="#/a", detail="b")])
    assert json.loads(error.problem().to_json()) == {
        "type": "about:blank", "title": "Content Too Large", "status": 413, "detail": "Too much.",
        "errors": [{"detail": "b", "pointer": "#/a"}],
    }  # fmt: skip


@given(st.lists(st.integers(0, 99) | st.text(max_size=9), max_size=4))
def test_pointers_lead_back(parts: list[str | int]) -> None:
    text = pointer(parts)
    assert text.isascii()
    found = [p.replace("~1", "/").replace("~0", "~") for p in unquote(text).split("/")[1:]]
    assert found == [str(part) for part in parts]
