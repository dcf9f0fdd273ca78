"""Errors on the wire: MEANINGS' statuses and titles, and fields by their names in bodies."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.app import route_table
from api.openapi import problem_statuses
from api.problems import Fault, Problem, ProblemError, phrase, pointer, problem_of
from api.routes.page import assets
from domino_tune.base.errors import BUG, MEANINGS, NotFoundError, StorageError
from domino_tune.requests import TuneRequest
from domino_tune.requests.problems import fields_named, plain_problem, type_of
from domino_tune.store.files import bundled_bytes
from domino_tune.store.profiles import parse_profile
from simulator.errors import DominoTuneError, InfeasiblePlanError, InputError, ProfileError


def test_options_are_told_by_their_names_in_bodies() -> None:
    with pytest.raises(InputError) as caught:
        TuneRequest(micro_batch_size=0)
    problem = problem_of(caught.value)
    assert problem.status == 422
    assert problem.title == "Bad input"
    assert problem.type == "/static/problems.html#bad-input"
    assert problem.detail.startswith("micro_batch_size must be a whole number ≥ 1")
    assert [fault.pointer for fault in problem.errors] == ["#/micro_batch_size"]


def test_an_option_with_its_number_is_told_as_a_value() -> None:
    said = plain_problem(
        InputError("8 ranks over --nodes 3; use --tp 2 … 8, or --gpus, not --odd 5.")
    )
    assert said["detail"] == "8 ranks over nodes = 3; use tp = 2 … 8, or gpus, not --odd 5."


def test_every_option_that_is_named_is_pointed_at() -> None:
    problem = problem_of(InputError("Missing --model, --set: give them, or a file with --plan."))
    assert [fault.pointer for fault in problem.errors] == ["#/model", "#/overrides", "#/plan"]
    assert "--" not in problem.detail


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("heads = 16 is not divisible by tp = 7; nearest: 4. Or try --set heads=64.", ["tp"]),
        ("tp 4 × dp 1 × pp 7 = 28 does not divide; use --nodes 2.", ["tp", "dp", "pp"]),
        ("4 ranks do not spread evenly over --nodes 3; use --tp 2.", ["nodes"]),
        ("wgrad 'fill' belongs to order 'greedy', the others have 'eager'.", ["wgrad", "order"]),
        ("Nothing fits in the memory; the smallest change that fits: --dp 2.", []),
    ],
)
def test_hints_are_not_pointed_at(said: str, named: list[str]) -> None:
    assert list(fields_named(said)) == named


def test_the_smallest_change_is_pointed_at_where_nothing_else_is() -> None:
    error = InfeasiblePlanError("Nothing fits.", reason="memory", change={"tp": 8, "dp": 2})
    assert [fault.pointer for fault in problem_of(error).errors] == ["#/tp", "#/dp"]


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
        "type": "/static/problems.html#content-too-large",
        "title": "Content Too Large", "status": 413,
        "detail": "Too much.",
        "errors": [{"detail": "b", "pointer": "#/a"}],
    }  # fmt: skip


def test_every_type_leads_to_a_line_of_the_docs() -> None:
    told = set(re.findall(r'<dt id="([^"]+)">', assets()["problems.html"].body.decode()))
    statuses = {status for route in route_table() for status in problem_statuses(route)}
    titles = {meaning.title for meaning in (*MEANINGS.values(), BUG)}
    # Only errors of domino_tune report 412 and 507.
    titles |= {phrase(status) for status in statuses | {431} if status not in (412, 507)}
    assert {type_of(title).partition("#")[2] for title in titles} == told


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        (lambda one: one.update(schema=99), "#/schema"),
        (lambda one: one.update(checksum="sha256:0"), "#/checksum"),
        (lambda one: one["gemm"]["rows"][3].__setitem__(0, "768"), "#/gemm/rows/3/0"),
        (lambda one: one["gemm"]["provenance"].update(sorce=""), "#/gemm/provenance"),
        (lambda one: one["gemm"]["fits"][0].pop("layout"), "#/gemm/fits/0"),
        (lambda one: one["machine"].pop("gpu"), "#/machine"),
    ],
)
def test_a_bad_profile_is_pointed_into(change: Callable[[Any], Any], pointer: str) -> None:
    plain = json.loads(bundled_bytes("h200-sxm"))
    change(plain)
    with pytest.raises(ProfileError) as caught:
        parse_profile(json.dumps(plain).encode(), source="the profile")
    # As a process that reads uploads hands it over.
    problem = problem_of(pickle.loads(pickle.dumps(caught.value)))
    assert problem.type == "/static/problems.html#bad-profile"
    assert [fault.pointer for fault in problem.errors] == [pointer]


@given(st.lists(st.integers(0, 99) | st.text(max_size=9), max_size=4))
def test_pointers_lead_back(parts: list[str | int]) -> None:
    text = pointer(parts)
    assert text.isascii()
    found = [p.replace("~1", "/").replace("~0", "~") for p in unquote(text).split("/")[1:]]
    assert found == [str(part) for part in parts]


def test_another_process_may_refuse() -> None:
    fault = Fault(pointer="#/a", detail="Bad.")
    error = ProblemError(422, "It is bad.", faults=[fault], headers={"Retry-After": "1"})
    found = pickle.loads(pickle.dumps(error))
    assert found.problem() == error.problem()
    assert (str(found), found.headers) == ("It is bad.", error.headers)
