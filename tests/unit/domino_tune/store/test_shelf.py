"""Where names are looked up, and plan files that are objects already."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domino_tune.base.errors import (
    ConflictError,
    KeyReuseError,
    NotFoundError,
    PreconditionError,
    StorageError,
    UnavailableError,
    meaning_of,
)
from domino_tune.requests import SimulateRequest, TuneRequest, WhatIfRequest
from domino_tune.store.shelf import DISK, LoadedModel, Shelf, dump_model, load_model, override
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.tune import tune
from domino_tune.verbs.whatif import whatif
from simulator.errors import DominoTuneError, InputError
from simulator.presets import MODELS

#  -------------------------------------------------------------------------------------------------

GPT = MODELS["gpt3-13b"]


def test_a_preset_and_its_file_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(dump_model(GPT))
    assert load_model(str(path)).spec == load_model("gpt3-13b").spec == GPT


def test_a_model_file_has_a_field_a_line_two_spaces_in() -> None:
    first, name, *fields, last, end = dump_model(GPT).split("\n")
    assert (first, name, last, end) == ("{", '  "name": "gpt3-13b",', "}", "")
    assert len(fields) + 1 == len(dataclasses.fields(GPT))


def test_config_json_is_named_after_its_folder_and_its_notes_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "some-llama"
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 100,
        "num_attention_heads": 8, "intermediate_size": 1024, "use_cache": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    for place in (folder, folder / "config.json"):
        loaded = load_model(str(place))
        assert loaded.spec.name == "some-llama"
        assert loaded.notes == (
            "some-llama: keys that do not matter to shape were ignored: use_cache.",
        )


def test_heads_bring_their_head_size_and_kv_heads() -> None:
    model = override(GPT, ["num_attention_heads=64"])
    assert (model.num_attention_heads, model.num_key_value_heads, model.head_dim) == (64, 64, 80)
    assert model.layer_parameters == GPT.layer_parameters


def test_kv_heads_of_a_grouped_model_stay() -> None:
    model = override(MODELS["llama3-8b"], ["num_attention_heads=64"])
    assert (model.num_key_value_heads, model.head_dim) == (8, 64)


def test_hugging_face_names_and_types() -> None:
    model = override(GPT, ["n_layer=2", "resid_pdrop=0", "tie_word_embeddings=false"])
    assert (model.num_hidden_layers, model.hidden_dropout) == (2, 0.0)
    assert not model.tie_word_embeddings
    assert model.name == (
        "gpt3-13b (num_hidden_layers=2, hidden_dropout=0.0, tie_word_embeddings=False)"
    )


def test_what_changes_nothing_keeps_the_name() -> None:
    assert override(GPT, ["num_attention_heads=40"]) is GPT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope=1", "Unknown model field"), ("n_layer", "FIELD=VALUE"), ("=3", "FIELD=VALUE"),
        ("n_layer=2.5", "whole number"), ("n_layer=-1", "≥ 1"), ("resid_pdrop=inf", "finite"),
        ("tie_word_embeddings=1", "true or false"), ("norm=batch", "rmsnorm"),
        ("num_attention_heads=0", "does not divide"),
    ],
)  # fmt: skip
def test_bad_overrides(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        override(GPT, [text])


def test_one_field_twice() -> None:
    with pytest.raises(InputError, match="twice"):
        override(GPT, ["n_layer=2", "num_hidden_layers=3"])


# Where names are looked up, and plan files that are objects already -------------------------------

WORKLOAD: dict[str, Any] = {"tp": 8, "seq_length": 512, "micro_batch_size": 8}


@pytest.fixture(scope="module")
def pinned() -> Shelf:
    profile = replace(DISK.profile("a100-sxm"), name="pinned")
    model = replace(DISK.model("gpt3-1.3b").spec, name="pinned", num_hidden_layers=2)
    return Shelf(lambda _: profile, lambda _: LoadedModel(spec=model, notes=("a remark",)))


def test_pinned_looks_up_nothing(pinned: Shelf) -> None:
    request = SimulateRequest(model="whatever", profile="no-such-profile", **WORKLOAD)
    result = simulate(request, shelf=pinned)
    assert (result.model.name, result.profile.name) == ("pinned", "pinned")
    assert "a remark" in result.warnings
    with pytest.raises(InputError, match="no-such-profile"):
        simulate(request)


def test_overrides_apply_to_what_is_pinned(pinned: Shelf) -> None:
    request = SimulateRequest(model="whatever", profile="any", **WORKLOAD)
    changed = simulate(request.but(overrides=("num_hidden_layers=3",)), shelf=pinned)
    assert changed.model.num_hidden_layers == 3
    assert "a remark" in changed.warnings
    with pytest.raises(InputError):
        simulate(request.but(overrides=("no_such_field=3",)), shelf=pinned)


def test_a_tuned_plan_replayed_as_an_object(pinned: Shelf) -> None:
    request = TuneRequest(model="a", profile="b", search="random", trials=3, **WORKLOAD)
    tuned = tune(request, shelf=pinned).best
    again = simulate(SimulateRequest(), plan_file=tuned.plan_file, shelf=pinned)
    assert (again.plan_file, again.variants) == (tuned.plan_file, tuned.variants)
    asked = WhatIfRequest(change=("link_bandwidth=2x",))
    found = whatif(asked, plan_file=tuned.plan_file, shelf=pinned)
    assert found.base.prediction
    assert found.base.prediction.iteration_ms == tuned.iteration_ms


@pytest.mark.parametrize(
    ("error", "exit_code", "status"),
    [
        (NotFoundError, 2, 404),
        (ConflictError, 2, 409),
        (KeyReuseError, 2, 422),
        (PreconditionError, 2, 412),
        (StorageError, 5, 507),
        (UnavailableError, 5, 503),
    ],
)
def test_what_errors_mean(error: type[DominoTuneError], exit_code: int, status: int) -> None:
    meaning = meaning_of(error("text"))
    assert (meaning.exit_code, meaning.http_status) == (exit_code, status)
