"""Meetings of a collective and GEMMs: what is played, and what is read off their stamps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.measure.gpu.admission import (
    LEAD_NS,
    SHAPES,
    Encounter,
    Meeting,
    admission_cases,
    median_meeting,
    meeting,
    told,
)
from domino_tune.measure.gpu.stage import Stage


def test_a_meeting_counts_from_the_arrival() -> None:
    found = meeting([(1_100, 2_000), (1_500, 2_600), (1_050, 2_500)], 1_000.0, [300.0, 310.0])
    assert found == Meeting(first_in=50, all_in=500, end=1_600, gemms=(300.0, 310.0))


def test_meetings_are_told_by_their_medians() -> None:
    found = median_meeting([Meeting(i, 10 * i, 100 * i, (i, 2 * i)) for i in (1, 2, 9)])
    assert found == {
        "first_in_ns": 2, "all_in_ns": 20, "end_ns": 200, "gemms_ns": [2, 4],
        "least_in_ns": 10, "most_in_ns": 90,
    }  # fmt: skip
    cell = {"ctas": 16, "rate": 40.0, "arrival": "behind", **found}
    assert told({"alone_ns": 2_000.0, "cells": [cell]}) == (
        "alone 2.0 us; 16 CTAs in after behind 0.01 of it"
    )


def test_shapes_have_the_waves_that_are_told() -> None:
    tiles = [math.ceil(tokens / 128) * math.ceil(out / 256) for tokens, out, _ in SHAPES[:5]]
    assert tiles == [130, 200, 260, 520, 1280]
    assert [math.ceil(count / 132) for count in tiles] == [1, 2, 2, 4, 10]


def test_collectives_arrive_behind_the_beginning_or_in_the_middle() -> None:
    behind, within = (Encounter(print, 80_000.0, 4, 0.0, name) for name in ("behind", "within"))
    assert (behind.later_ns, within.later_ns) == (LEAD_NS, 40_000)


def test_every_kind_spares_what_it_can(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "admission", 1.0, "mine", torch.device("cpu"))
    names = [case.name for case in admission_cases(stage)]
    assert len(set(names)) == len(names) == len(SHAPES) * (1 + 4 + 4)
    assert sum(name.startswith("library/") for name in names) == len(SHAPES)
