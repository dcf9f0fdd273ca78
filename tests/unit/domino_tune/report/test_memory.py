"""The section on memory: its bars add up, and its sentence says whether the plan fits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from domino_tune.report.data import Held, ReportData
from domino_tune.report.memory import where_memory_goes
from tests.support.pages import case, report_data


def page(capacity_gib: float) -> ReportData:
    return replace(
        report_data(case()),
        held=(
            Held(name="Megatron-LM", gib={"parameters": 2.0, "activations": 30.0, "logits": 0.0}),
            Held(
                name="Domino", chosen=True,
                gib={"parameters": 2.0, "activations": 20.0, "logits": 0.0},
            ),
        ),
        capacity_gib=capacity_gib,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("capacity_gib", "said"),
    [
        (80.0, "The plan needs 22.0 of 80 GiB; 58.0 are left"),
        (16.0, "It does not fit: the plan needs 22.0 GiB, and a GPU has 16."),
    ],
)
def test_it_says_whether_the_plan_fits(capacity_gib: float, said: str) -> None:
    assert said in where_memory_goes(page(capacity_gib))


def test_pieces_are_shares_of_the_longest_bar_or_of_the_capacity() -> None:
    small = where_memory_goes(page(16.0))
    assert re.findall(r"width:([\d.]+)%", small) == ["6.250", "93.750", "6.250", "62.500"]
    assert re.findall(r"left:([\d.]+)%", small) == ["50.000", "50.000"]
    large = where_memory_goes(page(64.0))
    assert re.findall(r"width:([\d.]+)%", large) == ["3.125", "46.875", "3.125", "31.250"]


def test_a_category_that_nobody_has_is_left_out() -> None:
    section = where_memory_goes(page(80.0))
    assert "Activations" in section
    assert "Logits" not in section
    assert section.count("22.00") == 1


def test_without_memory_there_is_no_section() -> None:
    assert not where_memory_goes(report_data(case()))
