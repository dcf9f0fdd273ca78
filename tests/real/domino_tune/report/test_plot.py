"""Line plots: what a page holds of them, and what a browser draws of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from domino_tune.report import Axis, plot_figure
from domino_tune.report.data import SweepPlot
from domino_tune.report.page import report_html
from simulator.errors import InputError
from tests.real.api.browser import Watched, chromium, watched
from tests.support.pages import case, report_data

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LINES: dict[str, tuple[float, ...]] = {
    "Megatron-LM": (750.0, 417.9, 355.0),
    "a <b> & c": (574.0, 370.3, 345.0),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(params=[1400, 390])
def seen(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Watched]:
    size = {"width": request.param, "height": 800}
    with watched(browser, "file://", viewport=size) as page:
        yield page


def test_a_page_draws_a_line_a_series(seen: Watched, tmp_path: Path) -> None:
    xs = tuple(f"{n:,}" for n in range(1000, 1032))
    many = SweepPlot(x_label="tp", xs=xs, series={"none": (0.0,) * 32, "some": (5000.0,) * 32})
    sweeps = (SweepPlot(x_label="link_bandwidth", xs=("0.5x", "1x", "2x"), series=LINES), many)
    html = report_html(replace(report_data(case()), sweeps=sweeps))
    (tmp_path / "page.html").write_text(html, "utf-8")
    page = seen.open(str(tmp_path / "page.html"))
    first, second = page.locator("#whatif svg.plot").all()
    assert first.locator("polyline").count() == 2
    points = str(first.locator("polyline").first.get_attribute("points")).split()
    heights = [float(point.split(",")[1]) for point in points]
    assert heights == sorted(heights), "less time is drawn lower"
    assert first.locator("circle title").nth(4).text_content() == "a <b> & c: 370.3 ms"
    wide = page.viewport_size["width"] > 640 if page.viewport_size else False
    names = first.locator("text.name") if wide else page.locator("#whatif .pass-keys").first
    assert "a <b> & c" in " ".join(names.all_text_contents())
    if wide:
        ends = [float(str(name.get_attribute("y"))) for name in names.all()]
        assert abs(ends[0] - ends[1]) >= 15, "names do not overlap"
    said = second.locator("text").all_text_contents()
    assert "1,000" in said
    assert "1,001" not in said, "names that are too close are left out"
    box = first.bounding_box()
    assert box
    assert box["x"] + box["width"] <= (1400 if wide else 390)
    page.locator("#whatif summary").first.click()
    row = page.locator("#whatif tbody tr").first
    assert row.locator("td").all_inner_texts() == ["750.0", "574.0"]
    seen.check()


def test_points_without_a_value_are_left_out() -> None:
    axis = Axis("Tokens", "t", 1)
    figure = plot_figure("Tokens", "GPUs", ("8", "16"), {"a": (None, 5000.0)}, axis)
    assert "[null, 5000.0]" in figure
    assert "<td>–</td>" in figure
    assert "<td>5,000.0</td>" in figure


@pytest.mark.parametrize("values", [(1.0,), (1.0, math.nan)])
def test_what_cannot_be_drawn_is_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="2 finite values"):
        plot_figure("tp", "tp", ("1", "2"), {"a": values})
