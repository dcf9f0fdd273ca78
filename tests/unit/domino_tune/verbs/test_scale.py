"""scale: the best layout at each number of GPUs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import domino_tune
from domino_tune.requests import MOST_NUMBERS, LayoutRequest, ScaleRequest
from domino_tune.results import to_json
from domino_tune.results.layouts import LayoutResult, ScaleResult
from domino_tune.verbs.layouts import tune_layouts
from domino_tune.verbs.scale import tune_scale
from simulator.errors import InfeasiblePlanError, InputError
from tests.support.runs import Runner

SMALL = ScaleRequest(
    model="gpt3-1.3b", profile="a100-sxm", seq_length=2048, gpus="2, 3,4",
    global_batch_size=4, overrides=("num_hidden_layers=4",), pp=1, recompute="none",
    micro_batch_size=1,
)  # fmt: skip
WORDS = (
    "scale", "--model", "gpt3-1.3b", "--profile", "a100-sxm", "--seq-length", "2048",
    "--global-batch-size", "4", "--set", "num_hidden_layers=4", "--gpus", "2,3,4",
    "--pp", "1", "--recompute", "none", "--micro-batch-size", "1",
)  # fmt: skip
HEAD = ["gpus", "layout"]


@cache
def told() -> tuple[ScaleResult, frozenset[str]]:
    """Two numbers with layouts around one that divides neither layers nor batch; and beginnings of
    the lines of its progress."""
    said: list[str] = []
    result = tune_scale(SMALL.but(tp=2), said.append)
    return result, frozenset(line.partition(":")[0] for line in said)


def found() -> ScaleResult:
    return told()[0]


def test_each_number_has_the_layout_that_it_has_alone() -> None:
    for point, layout in found().found:
        alone = tune_layouts(LayoutRequest(**{**dict(SMALL), "tp": 2, "gpus": point.gpus}))
        assert layout == alone.layouts[0]
        assert point.best_without_domino == alone.best_without_domino
        assert point.tokens_per_second == pytest.approx(4 * 2048 / layout.iteration_ms * 1e3)
        assert not any("Trace and page" in text for text in point.warnings)


def test_efficiency_is_over_the_first_number_that_has_a_layout() -> None:
    (first, one), (second, other) = found().found
    assert (first.gpus, second.gpus) == (2, 4)
    assert first.scaling_efficiency == 1.0
    assert second.scaling_efficiency == pytest.approx(
        other.tokens_per_second_per_gpu / one.tokens_per_second_per_gpu
    )


def test_a_number_without_a_layout_says_why() -> None:
    point = found().points[1]
    assert (point.gpus, point.layout, point.scaling_efficiency) == (3, None, None)
    assert point.error is not None
    assert "No layout divides 3 GPUs" in point.error
    text = str(found())
    assert "not possible" in text
    assert "\n3 GPUs: No layout divides 3 GPUs" in text
    assert "strong scaling" in text
    assert "over those at 2 GPUs" in text


def test_the_frame_has_a_row_a_number() -> None:
    frame = found().to_frame()
    assert list(frame["gpus"]) == [2, 3, 4]
    assert list(frame.columns)[:2] == HEAD
    assert list(frame["error"].astype(bool)) == [False, True, False]
    assert frame["tokens_per_second"].isna().tolist() == [False, True, False]
    assert set(LayoutResult.__dataclass_fields__) < set(frame.columns)


def test_the_numbers_of_a_sweep() -> None:
    assert SMALL.but(gpus="8,16, 4096").gpus == SMALL.but(gpus=[8, 16, 4096]).gpus
    most = ",".join(map(str, range(1, MOST_NUMBERS + 1)))
    assert len(SMALL.but(gpus=most).gpus) == MOST_NUMBERS


@pytest.mark.parametrize(
    "gpus",
    [
        "", "gpus", "8", "8,8", "16,8", "0,8", "8,-16", "8,16,", "8,x", "8,1_6", "8,¹6",
        [8, 8], [16, 8], [8, 16.0], "8," + "9" * 5000, list(range(1, MOST_NUMBERS + 2)),
    ],
)  # fmt: skip
def test_other_numbers_are_refused(gpus: Any) -> None:
    with pytest.raises(InputError, match="2 to 32 rising whole numbers ≥ 1, got"):
        SMALL.but(gpus=gpus)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"global_batch_size": None}, "Layouts need both: give --gpus N and --global-batch-size B"),
        ({"gpus": (8, 100000)}, "--gpus must be a whole number ≤ 65536, got 100000"),
        ({"grad_accumulation": 2}, "Unknown field 'grad_accumulation'"),
        ({"model": "gpt"}, "^Unknown model 'gpt'"),
        ({"tp": 5}, "No number of --gpus has a layout; the last: No layout divides 4"),
    ],
)
def test_what_does_not_go_with_a_sweep_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tune_scale(SMALL.but(**fields))


def test_a_model_that_fits_at_no_number() -> None:
    asked = SMALL.but(model="gpt3-175b", overrides=(), gpus=(2, 4), tp=2)
    with pytest.raises(InfeasiblePlanError, match=r"the last: No layout of gpt3-175b on 4 GPUs"):
        tune_scale(asked)


def test_progress_names_the_number() -> None:
    assert told()[1] == {"2 GPUs", "3 GPUs", "4 GPUs"}


def test_from_python() -> None:
    given: dict[str, Any] = {
        "model": "gpt3-1.3b", "profile": "a100-sxm", "seq_length": 2048, "global_batch_size": 4,
        "overrides": "num_hidden_layers=4", "tp": 2, "gpus": (2, 3, 4), "pp": 1,
        "recompute": "none", "micro_batch_size": 1,
    }  # fmt: skip
    result = domino_tune.scale(**given)
    assert isinstance(result, domino_tune.ScaleResult)
    assert to_json(result)["points"] == to_json(found())["points"]


def test_the_command_prints_a_row_a_number_and_draws_them(run: Runner, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run(*WORDS, "--tp", "2", "--json", "--report", str(page))
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    assert next(iter(shown)) == "points"
    assert [point["gpus"] for point in shown["points"]] == [2, 3, 4]
    assert shown["points"] == json.loads(json.dumps(to_json(found())))["points"]
    assert shown["points"][1]["error"].startswith("No layout divides 3 GPUs")
    text = page.read_text("utf-8")
    assert "Tokens a second a GPU, by GPUs" in text
    assert "--gpus 4 --global-batch-size 4 --out plan.json" in text
    assert "100%" in run(*WORDS, "--tp", "2").out
