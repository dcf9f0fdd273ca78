"""Wire types follow requests and results without another line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from api.generate import SPECIAL, shown, wire_body
from api.schemas import LayoutBody, ScaleBody, SimulateBody, SweepBody, TuneBody, WhatIfBody
from domino_tune.requests import TuneRequest
from domino_tune.requests.fields import NEEDED
from domino_tune.requests.options import MOST_ENTRIES, Several, option, option_of
from domino_tune.results import HIDDEN, to_json
from domino_tune.store.plans import ProfileRef
from simulator.plan import SlicePlan

BODIES = [TuneBody, LayoutBody, ScaleBody, SimulateBody, WhatIfBody, SweepBody]


class NewerRequest(TuneRequest):
    """A later version's."""

    depth: Annotated[Annotated[int, Field(ge=2, le=9)] | None, option("How deep.")] = None
    colours: Annotated[Several[Literal["red", "blue"]], option("Which.")] = ()


@pytest.mark.parametrize("body", BODIES)
def test_bodies_are_requests_without_files(body: Any) -> None:
    for name, told in body.model_json_schema()["properties"].items():
        if name in ("sweep", "retune") and body is WhatIfBody:
            continue  # jobs
        assert told["description"] == option_of(body, name).help
        if "FILE" in option_of(body, name).metavar:
            assert name in SPECIAL, f"{name} names a file of the server"


def test_a_new_field_needs_no_line() -> None:
    body = wire_body("NewerBody", NewerRequest)
    made = body.model_validate_json('{"tp": 8, "depth": 3, "colours": ["red"]}')
    wanted = NewerRequest(tp=8, depth=3, colours=("red",))
    assert isinstance(made, NewerRequest)
    assert dict(made) == dict(wanted)
    for bad in ('{"depth": 1}', '{"depth": 10}', '{"colours": ["green"]}', '{"colours": "red"}'):
        with pytest.raises(ValidationError):
            body.model_validate_json(bad)


@pytest.mark.parametrize(
    "bad",
    [
        '{"tp": "8"}', '{"tp": 8.0}', '{"tp": true}', '{"tp": 0}', '{"tp": 1e9}',
        '{"cuda_graph": 1}',
        '{"unknown": 1}', '{"model": "../x"}', '{"model": "a/b"}', '{"profile": "A"}',
        '{"model": "x..y"}', '{"model": ""}', '{"objective": "simulate"}', '{"evidence": "x"}',
        '{"seed": -1}', '{"seed": 4294967296}', '{"dtype": "int4"}', '{"overrides": [1]}',
        '{"overrides": [""]}', '{"overrides": null}',
    ],
)  # fmt: skip
def test_nothing_is_coerced_and_nothing_unknown_is_taken(bad: str) -> None:
    with pytest.raises(ValidationError):
        TuneBody.model_validate_json(bad)


def test_layouts_need_what_asks_for_them() -> None:
    assert not {"gpus", "global_batch_size"} & set(TuneBody.model_fields)
    whole: dict[str, Any] = {
        "gpus": 8, "global_batch_size": 16, "model": "a", "profile": "b", "seq_length": 1,
    }  # fmt: skip
    assert LayoutBody.model_validate(whole).gpus == 8
    for name in whole:
        for bad in ({k: v for k, v in whole.items() if k != name}, {**whole, name: None}):
            with pytest.raises(ValidationError):
                LayoutBody.model_validate(bad)


def test_lists_and_texts_are_bounded() -> None:
    many = {"overrides": ["a=1"] * (MOST_ENTRIES + 1)}
    for bad in (many, {"overrides": ["a" * 1000]}, {"model": "a" * 65}):
        with pytest.raises(ValidationError):
            TuneBody.model_validate(bad)


@pytest.mark.parametrize("name", ["gpt3-13b", "h100-dgx", "a", "0.9_x-y", "a."])
def test_slugs(name: str) -> None:
    assert SimulateBody.model_validate({"model": name}).model_dump()["model"] == name


def test_what_has_no_default_is_required_unless_a_plan_gives_it() -> None:
    assert TuneBody.model_json_schema()["required"] == list(NEEDED)
    for body in (SimulateBody, WhatIfBody, SweepBody):
        schema = body.model_json_schema()
        assert "required" not in schema
        either = [one["required"] for one in schema["anyOf"]]
        assert either == [["plan"], list(NEEDED)]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A result."""

    plan: SlicePlan
    ref: ProfileRef | None
    rates: dict[str, float]
    rows: tuple[ProfileRef, ...]
    secret: object = field(metadata=HIDDEN)


def test_results_are_shown_as_they_are_told() -> None:
    found = Found(
        plan=SlicePlan(), ref=None, rates={"a": 1.0}, secret=object(),
        rows=(ProfileRef(name="a", content_id="b"),),
    )  # fmt: skip
    told: dict[str, Any] = to_json(found)
    assert shown(Found).model_validate(told).model_dump() == told
    with pytest.raises(ValidationError):
        shown(Found).model_validate({**told, "secret": 1})


@dataclass(frozen=True, kw_only=True)
class _Many:
    rows: tuple[ProfileRef, ...]
    names: tuple[str, ...] = ()


def test_of_many_faulty_entries_the_first_is_told() -> None:
    faulty = '{"rows": [' + "{}," * 9_999 + '{}], "names": [1, 2, 3]}'
    with pytest.raises(ValidationError) as caught:
        shown(_Many).model_validate_json(faulty)
    places = {error["loc"][:2] for error in caught.value.errors()}
    assert places == {("rows", 0), ("names", 0)}
