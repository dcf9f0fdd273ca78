"""A stage: what it says, what it keeps, and what the next run does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.measure.gpu.loads import CaptureError
from lab.gpu.stage import GpuCase, Row, Stage


def _stage(folder: Path, minutes: float = 1.0) -> Stage:
    return Stage(folder, "copies", minutes, "mine", torch.device("cpu"))


def _case(name: str, measure: Callable[[], Row]) -> GpuCase:
    return GpuCase(name=name, seconds=90, measure=measure)


def _fails() -> Row:
    raise RuntimeError("CUDA out of memory")


def test_what_is_measured_is_told_and_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [_case(name, lambda: {"x": 3}) for name in ("a", "b")]
    _stage(tmp_path).run(cases[:1])
    _stage(tmp_path).run(cases)
    said = capsys.readouterr().out
    assert "copies: 1 cases are left, about 1.5 minutes on an H200; this run begins none" in said
    assert said.count("a, ") == said.count("b, ") == 1
    rows = _stage(tmp_path).rows()
    assert [(row["case"], row["complete"], row["x"]) for row in rows] == [
        ("a", True, 3),
        ("b", True, 3),
    ]


@pytest.mark.filterwarnings("default")
def test_a_case_that_fails_is_recorded_and_tried_again(tmp_path: Path) -> None:
    _stage(tmp_path).run([_case("a", _fails), _case("b", lambda: {"x": 1})])
    assert [row.get("error") for row in _stage(tmp_path).rows()] == [
        "RuntimeError: CUDA out of memory",
        None,
    ]
    _stage(tmp_path).run([_case("a", lambda: {"x": 2}), _case("b", _fails)])
    assert [row.get("x") for row in _stage(tmp_path).rows()] == [None, 1, 2]


@pytest.mark.filterwarnings("default")
def test_after_a_failed_capture_the_process_ends_and_the_case_comes_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoils() -> Row:
        raise CaptureError("No graph could be captured: an op waits for another stream")

    cases = [_case("a", spoils), _case("b", lambda: {"x": 1})]
    _stage(tmp_path).run(cases)
    assert [row["case"] for row in _stage(tmp_path).rows()] == ["a"]
    assert "Run the stage again" in capsys.readouterr().out
    _stage(tmp_path).run(cases)
    assert [row["case"] for row in _stage(tmp_path).rows()] == ["a", "b", "a"]


def test_what_is_not_complete_is_left(tmp_path: Path) -> None:
    cases = [_case("a", lambda: {"x": 1, "complete": False})]
    _stage(tmp_path).run(cases)
    assert _stage(tmp_path).left(cases) == cases


def test_no_case_begins_when_the_time_is_up(tmp_path: Path) -> None:
    stage = _stage(tmp_path, minutes=0)
    stage.run([_case("a", _fails)])
    assert stage.spent()
    assert stage.rows() == []


def test_a_stage_keeps_whole_rows_only(tmp_path: Path) -> None:
    stage = _stage(tmp_path)
    stage.write({"case": "a", "complete": True})
    with stage.rows_file.open("a") as file:
        file.write('{"case": "b", "cells": {}')
    assert [row["case"] for row in stage.rows()] == ["a"]
    stage.write({"case": "c"})
    assert [row["case"] for row in stage.rows()] == ["a", "c"]
    assert not stage.spent()
