"""The section on memory: its bars add up, and its sentence says whether the plan fits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from domino_tune.report.breakdown import where_memory_goes
from domino_tune.report.data import ReportData
from domino_tune.results.simulate import BASELINE, CHOSEN
from tests.support.pages import case, report_data, result_of, usable


def page(usable_gib: float, chance: float = 0.97) -> ReportData:
    held = {"parameters": 2.0, "activations": 30.0, "logits": 0.0}
    variants = dict(result_of(case()).variants)
    for name, activations in ((BASELINE, 30.0), (CHOSEN, 20.0)):
        memory_gib = {**held, "activations": activations}
        variants[name] = replace(variants[name], memory_gib=memory_gib)
    return report_data(
        case(), variants=variants, usable_memory=usable(usable_gib), fits_chance=chance
    )


@pytest.mark.parametrize(
    ("usable_gib", "chance", "said"),
    [
        (80.0, 0.97, "needs 22.0 of 80.0 usable GiB and fits with a chance of 97 %: about 23.9"),
        (23.0, 0.799, "a chance of 79 %, too little to recommend it: about 23.9 GiB"),
        (16.0, 0.0, "It does not fit: the plan needs 22.0 GiB, and 16.0 of a GPU are usable."),
    ],
)
def test_it_says_how_likely_the_plan_fits(usable_gib: float, chance: float, said: str) -> None:
    assert said in where_memory_goes(page(usable_gib, chance))


def test_it_says_what_is_usable_and_how_that_is_known() -> None:
    section = where_memory_goes(page(76.0))
    for text in ("reported: by a driver", "− 0.50", "assumed: half a GiB", "measured: 4 jobs"):
        assert text in section


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
