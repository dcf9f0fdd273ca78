"""Requests: one declaration serves the command line, Python and a strict JSON reader."""

from __future__ import annotations

import pytest

from domino_tune.cli.commands import VERBS, Verb
from domino_tune.requests import SimulateRequest, TuneRequest
from domino_tune.requests.command_line import command_line, simulate_request
from domino_tune.requests.options import GROUPS, choices_of, option_of
from domino_tune.search import SEARCHES
from simulator.errors import InputError
from simulator.implementation import NAMES
from simulator.plan import SlicePlan


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_field_says_what_it_is(verb: Verb) -> None:
    for part in verb.parts:
        for name in part.model_fields:
            said = option_of(part, name)
            assert said.help.endswith(".")
            assert (said.group in GROUPS) or not verb.asks


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
    items = TuneRequest.model_fields
    assert set(choices_of(items["search"].annotation)) == set(SEARCHES)
    assert choices_of(items["target"].annotation) == ("deepspeed",)
    assert choices_of(items["implementation"].annotation) == NAMES


def test_a_request_can_be_typed_again() -> None:
    request = TuneRequest(model="my model.json", tp=8, cuda_graph=True, overrides=("a=1", "b=2"))
    assert command_line(request) == (
        "python -m domino_tune tune --model 'my model.json' --tp 8 --cuda-graph --set a=1 --set b=2"
    )


def test_the_command_of_a_plan_names_only_what_is_special() -> None:
    request = TuneRequest(model="gpt3-13b", profile="h100-dgx", tp=8, seed=3)
    plan = SlicePlan(row_slices=4, mlp_col_slices=2, merge_wgrad=True)
    found = simulate_request(request, plan, 8, 2)
    assert command_line(found) == (
        "python -m domino_tune simulate --model gpt3-13b --profile h100-dgx --tp 8 "
        "--micro-batch-size 8 --no-sequence-parallel --grad-accumulation 2 "
        "--row-slices 4 --set mlp_col_slices=2 "
        "--order greedy --set wgrad=fill --set merge_wgrad=true"
    )
    assert isinstance(found, SimulateRequest)
