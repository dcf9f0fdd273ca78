"""The description of the API: frozen, complete, and generated from the program."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

from api.kinds import KINDS
from api.openapi import EXAMPLES, problem_statuses
from api.problems import WANTED
from api.schemas import JOB_BODIES, RESULTS
from domino_tune.requests import QUESTIONS, ProfilesImportRequest
from domino_tune.requests.service import JobKind
from domino_tune.service.work.kinds import JOBS
from tests.support.asked import fits
from tests.support.frozen import FILE, document, operations, route_table, text


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return document()


def test_it_is_the_committed_one(made: dict[str, Any]) -> None:
    assert FILE.read_text(encoding="utf-8") == text(made), (
        "The API changed; `python -m tests.support.frozen` writes results/openapi.json anew."
    )


def test_it_is_openapi_3_1_and_its_references_lead_somewhere(made: dict[str, Any]) -> None:
    assert made["openapi"].startswith("3.1")
    schemas = made["components"]["schemas"]
    wanted = {part.split('"')[0] for part in text(made).split("#/components/schemas/")[1:]}
    assert wanted <= set(schemas)
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)


def test_operation_ids_are_function_names(made: dict[str, Any]) -> None:
    table = {one.name: one for one in route_table()}
    assert len(table) == len(route_table())
    assert set(operations(made)) <= set(table)
    for name, operation in operations(made).items():
        assert made["paths"][table[name].path][table[name].method.lower()] is operation


def test_every_answer_is_described(made: dict[str, Any]) -> None:
    for declared in route_table():
        operation = operations(made).get(declared.name)
        if operation is None:  # files of the page
            continue
        responses = operation["responses"]
        for status in problem_statuses(declared):
            assert "application/problem+json" in responses[str(status)]["content"]
        assert operation["description"]
        assert bool(operation.get("requestBody")) == (declared.body is not None)
        if declared.path.startswith("/v1/") and declared.media_type == "application/json":
            good = responses[str(declared.status)]
            assert declared.status == 204 or good["content"]["application/json"]["schema"]


def test_answers_say_which_keys_are_always_there(made: dict[str, Any]) -> None:
    schemas = made["components"]["schemas"]
    for name in ("Job", "TuneResult", "SimulateResult", "Workload", "SlicePlan", "Verdict"):
        assert set(schemas[name]["required"]) == set(schemas[name]["properties"])
    # Older clients may omit newer fields of what they send.
    assert set(schemas["WorkloadGiven"]["required"]) < set(schemas["Workload"]["required"])


def test_every_answer_to_get_has_an_etag(made: dict[str, Any]) -> None:
    for declared in route_table():
        operation = operations(made).get(declared.name)
        if operation is None or declared.method != "GET":
            continue
        whole = declared.media_type not in ("text/event-stream", "text/plain")
        assert ("304" in operation["responses"]) is whole
        names = [one["name"] for one in operation.get("parameters", ())]
        assert ("If-None-Match" in names) is whole


def test_an_import_takes_all_that_its_request_has(made: dict[str, Any]) -> None:
    asked = operations(made)["import_profile"]["parameters"]
    names = {one["name"] for one in asked if one["in"] == "query"}
    # The file is the body, the name is in the path.
    assert names == set(ProfilesImportRequest.model_fields) - {"file", "name"}


def test_every_pattern_has_words_for_what_does_not_match(made: dict[str, Any]) -> None:
    patterns = {json.loads(f'"{one}"') for one in re.findall(r'"pattern": "(.*?)"', text(made))}
    assert patterns == set(WANTED)


def test_it_names_no_file_of_a_server(made: dict[str, Any]) -> None:
    schemas = made["components"]["schemas"]
    asked = {"TuneJobGiven", "LayoutJobGiven", "SimulateBody", "WhatIfBody", "WhatifJobGiven"}
    bodies = {name: schemas[name] for name in (*asked, "MeasuredRunGiven")}
    for body in bodies.values():
        assert body["additionalProperties"] is False
        assert not {"evidence", "force", "backend", "emulate_link"} & set(body["properties"])
    assert json.dumps(bodies).count("#/components/schemas/") == 0


def test_examples_are_those_of_operations_and_fit_their_schemas(made: dict[str, Any]) -> None:
    names = {one.name for one in route_table()}
    assert set(EXAMPLES) <= names
    for route in route_table():
        if route.body is None:
            continue
        example = EXAMPLES[route.name]
        assert (example.body is None) is bool(example.file)
        if isinstance(example.body, dict):
            content = operations(made)[route.name]["requestBody"]["content"]
            fits(example.body, content["application/json"]["schema"])


def test_there_are_few_routes() -> None:
    assert len(route_table()) <= 25


def test_what_asks_for_a_job_is_called_by_its_kind(made: dict[str, Any]) -> None:
    asked = made["components"]["schemas"]["JobBody"]["discriminator"]["mapping"]
    assert {place.rpartition("/")[2] for place in asked.values()} == {
        f"{kind.capitalize()}JobGiven" for kind in get_args(JobKind)
    }


def test_each_kind_of_job_is_an_entry_of_each_table(made: dict[str, Any]) -> None:
    kinds = set(get_args(JobKind))
    assert (
        kinds
        == set(KINDS)
        == set(JOB_BODIES)
        == set(RESULTS)
        == set(get_args(JobKind))
        <= set(QUESTIONS)
    )
    assert set(JOBS) == kinds - {"validate"}  # that has its result already
    assert set(made["components"]["schemas"]["JobBody"]["discriminator"]["mapping"]) == kinds
