"""Results show themselves: as the command line prints them, in notebooks, and as DataFrames."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from domino_tune import Profile, TuneResult, WhatIfResult, load_profile, tune, whatif
from domino_tune.cli import show
from domino_tune.results.profile import MeasuredSection, Outlier, ProfilingResult
from domino_tune.results.shown import LONG, Shown
from domino_tune.store.plans import ProfileRef
from tests.support.runs import TINY

HOSTILE = "<script>alert('&')</script>"
ON_TWO: dict[str, Any] = {"tp": 2, "seq_length": 256, "micro_batch_size": 2}


class Page(HTMLParser):
    """The rows of all tables, and every tag; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("th", "td"):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def machine() -> Profile:
    return load_profile("a100-sxm")


@pytest.fixture(scope="module")
def tuned(machine: Profile) -> TuneResult:
    model = replace(TINY, name=HOSTILE)
    return tune(model=model, profile=machine, search="random", trials=6, **ON_TWO)


@pytest.fixture(scope="module")
def swept(tuned: TuneResult) -> WhatIfResult:
    """A sweep whose last point cannot be: eight heads have no fifth."""
    return whatif(plan=tuned.best.plan_file, sweep="tp=2,4,5")


@pytest.fixture(scope="module")
def profiled(machine: Profile) -> ProfilingResult:
    outlier = Outlier(section="gemm", op="m=1", median_us=10.0, spread=0.5)
    return ProfilingResult(
        profile=ProfileRef.of(machine), path="here.json", complete=False, seconds=60.0,
        sections=(
            MeasuredSection(section="gemm", rows=7, new=3, left=2),
            MeasuredSection(section="launch", rows=None, new=1, left=None),
        ),
        outliers=(outlier,) * 6, rows=7, left=2, resume="go on", notes=("A note.",),
    )  # fmt: skip


@pytest.fixture(params=["simulated", "tuned", "swept", "profiled"])
def shown(request: pytest.FixtureRequest) -> Shown:
    if request.param == "simulated":
        tuned: TuneResult = request.getfixturevalue("tuned")
        return tuned.best
    result: Shown = request.getfixturevalue(request.param)
    return result


def test_text_is_what_the_command_line_prints(
    shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    show.tables(shown)
    out, err = capsys.readouterr()
    assert str(shown) == (out + err).rstrip("\n")
    assert "warning: " in err


def test_html_says_the_same_and_escapes_it(shown: Shown) -> None:
    html = shown._repr_html_()
    page = Page(html)
    rows = [[*map(str, row)] for table in shown.tables() for row in table.rows]
    assert [row for row in page.rows if row in rows] == rows
    assert "script" not in page.tags
    assert set(page.tags) <= {"table", "caption", "tr", "th", "td", "p", "b"}
    assert all(text.split("<")[0].split("'")[0] in html for text in shown.alerts())
    assert html.count("<b>warning</b>") == len(shown.alerts())


def test_a_long_table_is_folded(tuned: TuneResult) -> None:
    *_, table = tuned.best.tables()

    class Long(Shown):
        def tables(self) -> Any:
            return (replace(table, rows=[table.rows[0]] * (LONG + 1), marked=()),)

        def to_frame(self) -> Any:
            return None

    assert Page(Long()._repr_html_()).tags[:3] == ["details", "summary", "table"]


def test_simulation_as_a_frame(tuned: TuneResult) -> None:
    best, frame = tuned.best, tuned.best.to_frame()
    assert list(frame.index) == ["baseline", "baseline_no_sp", "chosen", "no_comm"]
    assert frame.loc["chosen", "iteration_ms"] == best.iteration_ms
    assert frame.loc["chosen", "speedup"] == best.speedup
    assert frame.loc["baseline", "peak_memory_gib"] == best.variants["baseline"].peak_memory_gib
    assert frame.loc["chosen", "plan"] == best.plan.label


def test_trials_as_a_frame(tuned: TuneResult) -> None:
    frame = tuned.to_frame()
    assert len(frame) == len(tuned.trials)
    assert frame["iteration_ms"].is_monotonic_increasing
    (chosen,) = frame[frame["chosen"]].to_dict("records")
    assert chosen["plan"] == tuned.best.plan.label
    assert chosen["row_slices"] == tuned.best.plan.row_slices
    assert chosen["speedup"] == pytest.approx(tuned.best.speedup)


def test_points_as_a_frame(swept: WhatIfResult) -> None:
    frame = swept.to_frame()
    assert list(frame["tp"]) == ["", "2", "4", "5"]
    unchanged_ms = swept.unchanged.iteration_ms
    assert frame["iteration_ms"][0] == frame["iteration_ms"][1] == unchanged_ms
    assert frame["iteration_ms"].isna().tolist() == [False, False, False, True]
    assert frame["error"][2] == ""
    assert frame["error"][3] == swept.points[2].error != ""


def test_sections_as_a_frame(profiled: ProfilingResult) -> None:
    frame = profiled.to_frame()
    assert list(frame["section"]) == ["gemm", "launch"]
    assert frame["left"].sum() == profiled.left
    assert frame["rows"].isna().tolist() == [False, True]


@pytest.mark.parametrize("name", ["tuned", "swept", "profiled"])
def test_names_of_columns_have_units(name: str, request: pytest.FixtureRequest) -> None:
    columns = " ".join(request.getfixturevalue(name).to_frame().columns)
    columns = columns.replace("tp_comm_overlap", "")  # Megatron-LM's own word
    assert (
        re.search(r"iteration(?!_ms)|memory(?!_gib)|comm(?!_ms|_fraction|_ctas)", columns) is None
    )
