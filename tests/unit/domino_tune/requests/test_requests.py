"""Requests: one declaration serves the command line, Python and a strict JSON reader."""

from __future__ import annotations

from dataclasses import fields

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError

from domino_tune.cli.commands import VERBS, Verb
from domino_tune.requests import SimulateRequest, TuneRequest
from domino_tune.requests.command_line import command_line, simulate_request
from domino_tune.requests.options import option_of
from domino_tune.search import SEARCHES
from domino_tune.search.space import TARGETS
from simulator.errors import InputError
from simulator.plan import SlicePlan

STRICT = ConfigDict(strict=True, extra="forbid")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_field_says_what_it_is(verb: Verb) -> None:
    for item in (*fields(verb.request), *fields(verb.outputs)):
        said = option_of(item)
        assert said.help.endswith(".")
        assert said.flag in ("", "--set", f"--{item.name.replace('_', '-')}")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_json_readers_take_them_strictly(verb: Verb) -> None:
    adapter = TypeAdapter(list[verb.request], config=STRICT)  # type: ignore[name-defined]
    assert adapter.json_schema()["items"]
    with pytest.raises(ValidationError):
        adapter.validate_json('[{"no_such_field": 1}]')


def test_json_and_python_requests_are_equal() -> None:
    adapter = TypeAdapter(list[TuneRequest], config=STRICT)
    text = '[{"model": "gpt3-13b", "tp": 8, "overrides": ["n_layer=2"], "search": "bayes"}]'
    wanted = TuneRequest(model="gpt3-13b", tp=8, overrides=("n_layer=2",), search="bayes")
    assert adapter.validate_json(text) == [wanted]
    for bad in ('"8"', "8.5", "true", "0"):
        with pytest.raises(ValidationError):
            adapter.validate_json(f'[{{"tp": {bad}}}]')


def test_values_are_checked_on_construction() -> None:
    with pytest.raises(InputError, match="Did you mean 'bayes'"):
        TuneRequest(search="bays")
    with pytest.raises(InputError, match="--trials must be a whole number ≥ 1"):
        TuneRequest(trials=0)
    for huge in (10**9 + 1, 10**400, 10**5000):
        with pytest.raises(InputError, match="--micro-batch-size must be a whole number ≤ 10"):
            TuneRequest(micro_batch_size=huge)
    assert TuneRequest(seed=2**32 - 1).seed == 2**32 - 1
    with pytest.raises(InputError, match="--seed must be a whole number ≤ 4294967295"):
        TuneRequest(seed=2**32)
    with pytest.raises(InputError, match="micro_batch_size"):
        TuneRequest(tune_also=("seq_length",))


def test_choices_are_those_of_the_search() -> None:
    item = {item.name: option_of(item) for item in fields(TuneRequest)}
    assert set(item["search"].choices) == set(SEARCHES)
    assert item["target"].choices == TARGETS


def test_a_request_can_be_typed_again() -> None:
    request = TuneRequest(model="my model.json", tp=8, cuda_graph=True, overrides=("a=1", "b=2"))
    assert command_line("tune", request) == (
        "python -m domino_tune tune --model 'my model.json' --tp 8 --cuda-graph --set a=1 --set b=2"
    )


def test_the_command_of_a_plan_names_only_what_is_special() -> None:
    request = TuneRequest(model="gpt3-13b", profile="h100-dgx", tp=8, seed=3)
    plan = SlicePlan(row_slices=4, mlp_col_slices=2, merge_wgrad=True)
    found = simulate_request(request, plan, 8, 2)
    assert command_line("simulate", found) == (
        "python -m domino_tune simulate --model gpt3-13b --profile h100-dgx --tp 8 "
        "--micro-batch-size 8 --grad-accumulation 2 --no-sequence-parallel "
        "--row-slices 4 --mlp-col-slices 2 "
        "--order greedy --wgrad fill --merge-wgrad"
    )
    assert isinstance(found, SimulateRequest)
