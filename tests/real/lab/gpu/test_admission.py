"""Stage ``admission``: which GEMMs collectives meet, and what it reports."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.measure.gpu import Meeting
from lab.gpu.admission import admission_cases, median_meeting
from lab.gpu.cases import SHAPES
from lab.gpu.stage import Stage


def test_meetings_are_told_by_their_medians() -> None:
    found = median_meeting(
        [Meeting(i, 10 * i, 100 * i, 5, (i, 2 * i), late=i == 9) for i in (1, 2, 9)]
    )
    assert found == {
        "first_in_ns": 2, "all_in_ns": 20, "end_ns": 200, "gemms_ns": [2, 4],
        "least_in_ns": 10, "most_in_ns": 90, "arrived_ns": 5, "late": 1,
    }  # fmt: skip
    idle = median_meeting([Meeting(1, 2, 3, 4, ())])
    assert idle["gemms_ns"] == []


def test_shapes_have_the_waves_that_are_told() -> None:
    tiles = [
        math.ceil(tokens / 128) * math.ceil(out / 256) for tokens, out, _ in SHAPES["admission"][:5]
    ]
    assert tiles == [130, 200, 260, 520, 1280]
    assert [math.ceil(count / 132) for count in tiles] == [1, 2, 2, 4, 10]


def test_every_kind_spares_what_it_can(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "admission", 1.0, "mine", torch.device("cpu"))
    names = [case.name for case in admission_cases(stage)]
    assert len(set(names)) == len(names) == len(SHAPES["admission"]) * (2 + 4)
    assert sum(name.startswith("library/") for name in names) == len(SHAPES["admission"])
