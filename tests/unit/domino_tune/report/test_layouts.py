"""The picture of layouts: bars of the best ones, points of the frontier."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from domino_tune.report.layouts import WIDEST, frontier_figure, layouts_picture, ticks_around
from domino_tune.report.page import report_html
from domino_tune.results.layouts import Layouts
from simulator.plan import MEGATRON
from tests.support.pages import case, layout, layouts, report_data

RIVAL = layout(980.0, MEGATRON, domino_gain=1.0, domino_gain_here=1.0)


def section(found: Layouts) -> ElementTree.Element:
    """The section of a page, read as XML."""
    return ElementTree.fromstring(layouts_picture(replace(report_data(case()), layouts=found)))


def widths(bar: ElementTree.Element) -> dict[str, float]:
    """Width in per cent of each part of a bar, by its class."""
    return {
        str(rect.get("class")): float(str(rect.get("width")).rstrip("%"))
        for rect in bar.findall("rect")
    }


def test_a_bar_is_the_same_layout_without_domino_and_what_domino_adds() -> None:
    ranked = (layout(1050.0), RIVAL, layout(900.0, domino_gain_here=None))
    bars = section(layouts(*ranked, rival=RIVAL)).findall("svg[@class='ranking']/g")
    parts = [widths(bar) for bar in bars]
    assert parts[0]["rank-without"] == pytest.approx(WIDEST * 1000 / 1050, abs=0.01)
    assert sum(parts[0].values()) == pytest.approx(WIDEST, abs=0.01)
    assert set(parts[1]) == {"rank-without"}
    assert parts[2] == {"rank-only": pytest.approx(WIDEST * 900 / 1050, abs=0.01)}
    marks = {str(bar.find("line").get("x1")) for bar in bars}  # type: ignore[union-attr]
    assert len(marks) == 1
    assert [bar.findall("text")[1].text for bar in bars] == ["1,050, +5 %", "980", "900"]


def test_the_section_says_what_domino_adds() -> None:
    texts = {
        "1.020× as fast": layouts(layout(1000.0), rival=RIVAL),
        "does without Domino": layouts(RIVAL, rival=RIVAL),
        "No layout is sure enough to fit without Domino": layouts(layout(1000.0)),
    }
    for text, found in texts.items():
        whole = " ".join(section(found).itertext())
        assert text in whole
        assert "16 GPUs train 64 sequences" in whole
        assert ("best without Domino: 980" in whole) == (found.best_without_domino is not None)


def test_the_page_has_the_section_only_with_layouts() -> None:
    data = report_data(case())
    assert layouts_picture(data) == ""
    page = report_html(replace(data, layouts=layouts(layout(1000.0), rival=RIVAL)))
    assert page.index('id="layouts"') < page.index('id="lanes"')
    assert "domino 2x1/1 inter" in page


def test_points_that_are_close_share_a_number() -> None:
    found = [
        layout(1000.0, iteration_ms=ms, peak_memory_gib=gib)
        for ms, gib in ((100.0, 70.0), (150.0, 50.0), (151.0, 49.9), (152.0, 49.8), (200.0, 30.0))
    ]
    figure = ElementTree.fromstring(f"<div>{frontier_figure(found)}</div>")
    drawn = figure.find(".//svg")
    assert drawn is not None
    assert [text.text for text in drawn.findall("text[@class='number']")] == ["1", "2–4", "5"]
    assert len(drawn.findall("g/circle")) == 5
    rows = figure.findall(".//tbody/tr")
    assert [row.findtext("th") for row in rows] == ["1", "2", "3", "4", "5"]
    places = [
        (float(str(dot.get("cx"))), float(str(dot.get("cy")))) for dot in drawn.iter("circle")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("values", [(5.0,), (0.0,), (1520.3, 1634.5), (35.3, 64.9), (64.9, 64.91)])
def test_ticks_are_around_all_values(values: tuple[float, ...]) -> None:
    ticks = ticks_around(values)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] <= min(values)
    assert ticks[-1] >= max(values)
