"""Results over JSON and back: the same tables, the same JSON, and nothing else is taken."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from domino_tune.cli import show
from domino_tune.requests import SimulateRequest, TuneRequest
from domino_tune.results import to_json
from domino_tune.results.from_json import result_from_json, simulated_from_json
from domino_tune.results.tune import TuneResult
from domino_tune.store.shelf import dump_model
from domino_tune.verbs.simulate import simulate
from domino_tune.verbs.tune import tune
from simulator.errors import InputError
from tests.support.runs import TINY


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.json"
    path.write_text(dump_model(TINY))
    return str(path)


@pytest.fixture(scope="module")
def local(model: str) -> TuneResult:
    asked = TuneRequest(
        model=model, profile="a100-sxm", tp=2, seq_length=256, micro_batch_size=2, search="random",
        trials=4,
    )  # fmt: skip
    return tune(asked)


def sent(result: TuneResult) -> Any:
    """As a server sends it."""
    content = to_json(result)
    del content["seconds"]
    return json.loads(json.dumps(content, separators=(",", ":"), allow_nan=False))


def test_a_tune_is_the_same_on_the_other_side(
    local: TuneResult, capsys: pytest.CaptureFixture[str]
) -> None:
    there = result_from_json("tune", sent(local), seconds=local.seconds)
    assert json.dumps(to_json(there)) == json.dumps(to_json(local))
    show.tables(local)
    ours = capsys.readouterr()
    show.tables(there)
    assert capsys.readouterr() == ours
    assert there.best.plan == local.best.plan


def test_a_simulation_is_the_same_on_the_other_side(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = SimulateRequest(
        model=model, profile="a100-sxm", tp=2, seq_length=256, micro_batch_size=2
    )  # fmt: skip
    result = simulate(asked)
    there = simulated_from_json(json.loads(json.dumps(to_json(result))))
    assert to_json(there) == to_json(result)
    show.tables(result)
    ours = capsys.readouterr()
    show.tables(there)
    assert capsys.readouterr() == ours


def changes(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """``value`` with one thing wrong, at every object in it (the first of a list is enough)."""
    if isinstance(value, list):
        yield path, "no list"
        for where, one in changes(value[0], f"{path}/0") if value else ():
            yield where, [one, *value[1:]]
    elif isinstance(value, dict):
        yield f"{path}/stranger", {**value, "stranger": 1}
        for key, held in value.items():
            yield f"less {path}/{key}", {k: v for k, v in value.items() if k != key}
            for where, one in changes(held, f"{path}/{key}"):
                yield where, {**value, key: one}
    else:
        yield path, [value]


def test_nothing_else_is_taken(local: TuneResult) -> None:
    good = sent(local)
    before = copy.deepcopy(good)
    taken = []
    for where, bad in changes(good):
        try:
            result_from_json("tune", bad, seconds=1.0)
        except InputError:
            continue
        taken.append(where)
    assert good == before
    free = (  # keys of their own
        "variants", "infeasible", "confidence_shares", "time_by_role_ms", "memory_gib", "unsure",
    )  # fmt: skip
    assert [where for where in taken if not any(f"/{name}/" in where for name in free)] == []


@pytest.mark.parametrize("bad", [None, [], "text", {}, 5])
def test_something_else_altogether(bad: Any) -> None:
    with pytest.raises(InputError):
        result_from_json("tune", bad, seconds=1.0)


def test_a_plan_that_cannot_be_is_named(local: TuneResult) -> None:
    bad = sent(local)
    bad["best"]["plan"]["order"] = "backwards"
    message = r"^tune result: best\.plan\.order: must be 'greedy', .* or 'paper', got 'backwards'"
    with pytest.raises(InputError, match=message):
        result_from_json("tune", bad, seconds=1.0)
