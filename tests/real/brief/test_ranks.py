"""Two real ranks: a machine is profiled, and a plan runs beside its baseline and its bound."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from domino_tune.store.shelf import dump_model
from tests.support.runs import Runner
from tests.support.validation_cases import MODEL, write_files


def test_two_ranks_profile_this_machine(run: Runner) -> None:
    model = run.folder / "model.json"
    model.write_text(dump_model(MODEL))
    done = run(
        "profile", "--name", "here", "--for-model", str(model), "--tp", "2", "--seq-length", "32",
        "--micro-batch-size", "2", "--samples", "3", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    sections = {one["section"]: one for one in json.loads(done.out)["sections"]}
    for name in ("gemm", "attention", "pointwise", "collectives"):
        assert sections[name]["new"] > 0
        assert sections[name]["left"] == 0


def test_two_ranks_run_a_plan(run: Runner) -> None:
    files = write_files(run.folder)
    done = run(
        "validate", "--plan", files.four, "--profile", files.profile, "--rounds", "3",
        "--backend", "gloo", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    plans = json.loads(done.out)["plans"]
    assert [one["name"] for one in plans] == ["baseline", "no_comm", "four"]
    assert all(len(one["makespans_ms"]) == 3 and not one["failed"] for one in plans)
