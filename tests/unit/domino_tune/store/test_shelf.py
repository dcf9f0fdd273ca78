"""Where names are looked up, and plan files that are objects already."""

from __future__ import annotations

from dataclasses import replace
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
from domino_tune.store.models import LoadedModel
from domino_tune.store.shelf import DISK, Pinned
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.tune import tune
from domino_tune.verbs.whatif import whatif
from simulator.errors import DominoTuneError, InputError

WORKLOAD: dict[str, Any] = {"tp": 8, "seq_length": 512, "micro_batch_size": 8}


@pytest.fixture(scope="module")
def pinned() -> Pinned:
    profile = replace(DISK.profile("a100-sxm"), name="pinned")
    model = replace(DISK.model("gpt3-1.3b").spec, name="pinned", num_hidden_layers=2)
    return Pinned(profile, LoadedModel(spec=model, notes=("a remark",)))


def test_pinned_looks_up_nothing(pinned: Pinned) -> None:
    request = SimulateRequest(model="whatever", profile="no-such-profile", **WORKLOAD)
    result = simulate(request, shelf=pinned)
    assert (result.model.name, result.profile.name) == ("pinned", "pinned")
    assert "a remark" in result.warnings
    with pytest.raises(InputError, match="no-such-profile"):
        simulate(request)


def test_overrides_apply_to_what_is_pinned(pinned: Pinned) -> None:
    changed = pinned.model("whatever", ["num_hidden_layers=3"])
    assert (changed.spec.num_hidden_layers, changed.notes) == (3, ("a remark",))
    with pytest.raises(InputError):
        pinned.model("whatever", ["no_such_field=3"])


def test_a_tuned_plan_replayed_as_an_object(pinned: Pinned) -> None:
    request = TuneRequest(model="a", profile="b", search="random", trials=3, **WORKLOAD)
    tuned = tune(request, shelf=pinned).best
    again = simulate(SimulateRequest(), plan_file=tuned.plan_file, shelf=pinned)
    assert (again.plan_file, again.variants) == (tuned.plan_file, tuned.variants)
    asked = WhatIfRequest(change=("link_bandwidth=2x",))
    found = whatif(asked, plan_file=tuned.plan_file, shelf=pinned)
    assert found.base.result
    assert found.base.result.iteration_ms == tuned.iteration_ms


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
