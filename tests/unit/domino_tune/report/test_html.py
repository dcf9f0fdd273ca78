from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from domino_tune.report.page import report_html
from simulator.case import Case
from simulator.plan import MEGATRON, SlicePlan
from tests.support.pages import case, full_data, report_data, verdict

VOID = {"meta", "br"}
SECTIONS = ("layouts", "lanes", "cuts", "time", "confidence", "whatif", "asked", "again")


class Reader(HTMLParser):
    """Checks nesting; keeps ids, attributes and the text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.said: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "srcset", "action", "data"):
                self.links.append(value or "")
            assert not name.startswith("on"), "no inline handlers"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).split())


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_page_is_whole_and_needs_no_network() -> None:
    page = report_html(full_data(case()))
    reader = read(page)
    assert reader.links == []
    without = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest", without)
    assert "default-src 'none'" in page
    assert len(set(reader.ids)) == len(reader.ids)
    assert [i for i in reader.ids if i in SECTIONS] == list(SECTIONS)
    assert len(page) < 300_000


def test_parts_without_data_are_left_out() -> None:
    reader = read(report_html(report_data(case())))
    assert [i for i in reader.ids if i in SECTIONS] == ["lanes", "time", "confidence", "asked"]


def test_text_of_the_user_never_becomes_markup() -> None:
    evil = '</script><script>alert(1)</script> $title & " \' <b x="1">'
    page = report_html(full_data(case(), evil))
    reader = read(page)
    assert "<script>alert" not in page
    assert reader.scripts == 3
    assert reader.text.count('<b x="1">') >= 15


def test_answer_says_what_to_do() -> None:
    def said(iteration_ms: float) -> str:
        speedup = 100.0 / iteration_ms
        told: dict[str, Any] = {
            "iteration_ms": iteration_ms,
            "baseline_ms": 100.0,
            "speedup": speedup,
        }
        return read(report_html(report_data(case(), **told))).text

    assert "1.25× faster" in said(80.0)
    assert "slower than Megatron-LM" in said(120.0)
    assert "no faster than Megatron-LM" in said(100.0)
    assert "Megatron-LM takes" in read(report_html(report_data(case(), MEGATRON))).text


@pytest.mark.parametrize(
    ("chances", "said"),
    [
        ((0.1, 0.9), "as fast as Megatron-LM, and the fastest with a chance of 90 %"),
        ((0.45, 0.55), "as Megatron-LM; its chance to be the fastest is 55 %"),
        ((0.95, 0.05), "Not here: Megatron-LM is the fastest with a chance of 95 %"),
        ((0.51, 0.49), "Megatron-LM leads; its chance to be the fastest is 51 %"),
    ],
)
def test_the_verdict_stands_on_top_with_its_chance(chances: tuple[float, float], said: str) -> None:
    page = read(report_html(report_data(case(), verdict=verdict(*chances)))).text
    assert said in page
    text = "Chance to be the fastest: "
    assert page.index(said) < page.index(text) < page.index("Tokens/s/GPU")
    first, second = sorted(chances, reverse=True)
    assert re.search(rf"{text}[\w-]+ {first:.0%}, [\w-]+ {second:.0%}\.", page.replace(" %", "%"))
    assert "likely" not in page
    assert ("about Domino's best cut, " in page) == (chances[0] > chances[1])


def test_the_verdict_tells_what_does_not_fit() -> None:
    data = report_data(case(), verdict=verdict(0.0, 1.0, fits=(False, True)))
    said = "Domino fits, Megatron-LM does not; it is the fastest with 100 %"
    assert said in read(report_html(data)).text
    none = report_data(case(), verdict=verdict(0.0, 0.0, fits=(False, False)))
    page = read(report_html(none)).text
    assert "No plan is sure enough to fit the memory" in page
    assert "Domino does not fit, Megatron-LM does not fit." in page


def test_the_best_layout_is_named_on_top() -> None:
    data = full_data(case())
    data = replace(data, result=replace(data.result, verdict=verdict(0.1, 0.9)))
    page = read(report_html(data)).text
    said = "The best layout is tp 4, pp 2, dp 2, micro-batch 1 Domino leads there, 1.15× as fast as"
    assert said in page.replace(" , ", ", ")


@pytest.mark.parametrize(
    ("on", "plan"),
    [
        (case(layers=1), SlicePlan()),
        (case(tp=1), SlicePlan(order="intra", wgrad="eager")),
        (case(dp=2, micros=3), SlicePlan(row_slices=4, merge_wgrad=True)),
        (case("llama2-7b"), SlicePlan(row_slices=3, attn_col_slices=2, mlp_dgrad_slices=4)),
    ],
)
def test_every_kind_of_case_gets_a_page(on: Case, plan: SlicePlan) -> None:
    read(report_html(report_data(on, plan)))


def test_same_data_same_text() -> None:
    data = report_data(case())
    assert report_html(data) == report_html(data)
