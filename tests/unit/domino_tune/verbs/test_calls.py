"""The verbs from Python: the fields of requests as arguments, objects in place of names."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import domino_tune
from domino_tune import (
    InputError,
    ModelSpec,
    PlanFile,
    SimulateResult,
    load_plan,
    load_profile,
    profile,
    save_plan,
    simulate,
    tune,
    tune_measured,
    validate,
    whatif,
)
from domino_tune.requests import (
    ProfileRequest,
    SimulateRequest,
    TuneRequest,
    ValidateRequest,
    WhatIfRequest,
)
from domino_tune.results import to_json
from domino_tune.store.shelf import dump_model
from domino_tune.verbs.simulate import simulate as simulate_verb
from tests.support.runs import TINY

ON_TWO: dict[str, Any] = {"tp": 2, "seq_length": 256, "micro_batch_size": 2}
REQUESTS = [
    (simulate, SimulateRequest), (tune, TuneRequest), (whatif, WhatIfRequest),
    (validate, ValidateRequest), (profile, ProfileRequest),
]  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(dump_model(TINY))
    return path


@pytest.fixture(scope="module")
def simulated() -> SimulateResult:
    return simulate(model=TINY, profile="a100-sxm", **ON_TWO)


@pytest.fixture(scope="module")
def plan_file(simulated: SimulateResult) -> PlanFile:
    return simulated.plan_file


def test_arguments_are_the_fields_of_the_request() -> None:
    given: dict[str, Any] = {"model": "llama2-7b", "profile": "a100-sxm", **ON_TWO}
    here = simulate(**given, row_slices=2, overrides=["num_hidden_layers=4"])
    asked = SimulateRequest(**given, row_slices=2, overrides=("num_hidden_layers=4",))
    assert to_json(here) == to_json(simulate_verb(asked))


def test_a_model_is_a_spec_a_text_or_a_path(tiny: Path, simulated: SimulateResult) -> None:
    for model in (tiny, str(tiny)):
        assert to_json(simulate(model=model, profile="a100-sxm", **ON_TWO)) == to_json(simulated)
    deeper = simulate(model=TINY, profile="a100-sxm", overrides="num_hidden_layers=8", **ON_TWO)
    assert deeper.model.num_hidden_layers == 8


def test_a_path_is_never_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("llama2-7b").write_text(dump_model(TINY))
    assert simulate(model=Path("llama2-7b"), profile="a100-sxm", **ON_TWO).model == TINY


def test_a_loaded_profile_is_used_as_it_is(simulated: SimulateResult) -> None:
    machine = load_profile("a100-sxm")
    mine = replace(machine, name="mine")
    found = simulate(model=TINY, profile=mine, **ON_TWO)
    assert found.profile.content_id == mine.content_id != machine.content_id
    assert found.iteration_ms == simulated.iteration_ms
    tuned = tune(model=TINY, profile=mine, search="random", trials=2, **ON_TWO)
    assert tuned.best.profile.name == "mine"


def test_a_plan_is_a_file_or_loaded(plan_file: PlanFile, tmp_path: Path) -> None:
    save_plan(plan_file, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan_file
    sweep = "link_bandwidth=1x,2x"
    results = [
        whatif(plan=plan, sweep=sweep)
        for plan in (plan_file, tmp_path / "plan.json", str(tmp_path / "plan.json"))
    ]
    assert to_json(results[0]) == to_json(results[1]) == to_json(results[2])
    assert simulate(plan=plan_file).plan == plan_file.plan


def test_several_texts_are_one_text_or_a_list(plan_file: PlanFile) -> None:
    one = whatif(plan=plan_file, change="contention=off")
    assert to_json(one) == to_json(whatif(plan=plan_file, change=["contention=off"]))
    assert to_json(one) == to_json(whatif(plan=plan_file, change=("contention=off",)))


def test_progress_gets_each_plan() -> None:
    lines: list[str] = []
    tune(model=TINY, profile="a100-sxm", search="random", trials=2, progress=lines.append, **ON_TWO)
    assert lines


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": 0}, "tp must be a whole number ≥ 1, got 0"),
        ({"tp": 2.0}, "tp must be a whole number, got 2.0"),
        ({"tp": "8"}, "tp must be a whole number, got '8'"),
        ({"tp": 64, "nodes": 1}, "do not fit on nodes = 1"),
        ({"overrides": "heads"}, "overrides wants FIELD=VALUE"),
        ({"model": "llama2-7"}, "Did you mean 'llama2-7b'?"),
        ({"model": 7}, "model must be a text, got 7; correct it."),
        ({"profile": {}}, "profile must be a text, got {}; correct it."),
        ({"dtype": int}, "Unknown dtype value \"<class 'int'>\". Known: bf16"),
        ({"cuda_graph": "on"}, "cuda_graph must be true or false, got 'on'; correct it."),
        ({"overrides": 3}, "overrides must be a text or a list of them, got 3; correct it."),
        ({"overrides": [3]}, "overrides must be a text, got 3; correct it."),
        ({"model": None}, "Missing model: give it, or a plan file with plan."),
    ],
)
def test_a_wrong_value_is_refused(given: dict[str, Any], said: str) -> None:
    usual = {"model": "llama2-7b", "profile": "a100-sxm", **ON_TWO}
    with pytest.raises(InputError) as caught:
        simulate(**{**usual, **given})
    assert said in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "advice", "change"),
    [
        ({"tp": 1, "pp": 3, "grad_accumulation": 3}, "pp_layers=11,11,10",
         {"pp_layers": "11,11,10"}),
        ({"model": "mixtral-8x7b", "tp": 2, "dp": 3, "ep": 2}, "use etp=1", {"etp": 1}),
    ],
)  # fmt: skip
def test_advice_is_in_words_of_arguments(
    given: dict[str, Any], advice: str, change: dict[str, Any]
) -> None:
    usual = {"model": "llama3-8b", "profile": "h100-dgx", "strategy": "megatron", **ON_TWO}
    with pytest.raises(InputError, match=advice):
        simulate(**{**usual, **given})
    assert simulate(**{**usual, **given, **change}).iteration_ms


def test_an_unknown_argument_is_refused_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"tune\(\): Unknown argument 'seq_len'. Did you mean 'seq"):
        tune(seq_len=2048)
    with pytest.raises(TypeError, match=r"simulate\(\) takes 0 positional"):
        simulate("llama2-7b")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "call",
    [
        lambda: tune_measured(model=TINY, profile="a100-sxm", **ON_TWO),
        lambda: validate(plan="plan.json", profile=load_profile("a100-sxm")),
    ],
)
def test_what_runs_on_ranks_takes_no_objects(call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=r"goes on from files: give .* by name or path"):
        call()


@pytest.mark.parametrize(("verb", "request_class"), REQUESTS)
def test_notebooks_see_the_fields(verb: Any, request_class: type[Any]) -> None:
    known = list(request_class.model_fields)
    assert list(inspect.signature(verb).parameters) == [*known, "progress"]
    assert all(f"\n{name}: " in verb.__doc__ for name in known)
    assert pickle.loads(pickle.dumps(verb)) is verb


def test_every_name_of_the_package_is_there() -> None:
    assert dir(domino_tune) == sorted(domino_tune.__all__)
    assert all(hasattr(domino_tune, name) for name in domino_tune.__all__)
    assert issubclass(domino_tune.InfeasiblePlanError, domino_tune.DominoTuneError)
    assert ModelSpec is type(TINY)
    with pytest.raises(AttributeError, match="no attribute 'simulator_of_mine'"):
        domino_tune.simulator_of_mine  # noqa: B018
