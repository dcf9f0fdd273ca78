"""The cheap benchmarks run and meet their targets. The others are only listed by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from domino_tune.verbs.resolve import baseline_plan
from lab.bench import BENCHES
from lab.bench import agreement as bench_agreement
from lab.bench import properties as bench_properties
from lab.bench.__main__ import main
from lab.bench.agreement import FAMILIES, NEAR
from lab.bench.cases import SEARCH_CASES
from lab.bench.constants import MEASURED, near_stated
from lab.bench.greedy import greedy
from lab.bench.properties import PROPERTIES, Property, properties
from lab.bench.search import search
from lab.bench.sequence_slices import best, case_of, sequence_slices
from lab.bench.upstream import LEFT_OVER, RUN_MS, _left_over
from lab.verdict import at_most, check_table, count_verdicts, reported
from simulator.lookup.expected import EXPECTED, GEMM_DGRAD, SINGLE_RUN
from simulator.predict import predict

QUICK = tuple(case for case in SEARCH_CASES if case.label.startswith("llama2-7b tp8 b1 "))


@pytest.mark.parametrize("name", [pytest.param("contention", marks=pytest.mark.facts), "slices"])
def test_targets_on_measurements_are_met(name: str, request: pytest.FixtureRequest) -> None:
    if name == "contention":
        request.getfixturevalue("facts_dir")
    ok, missed = count_verdicts(BENCHES[name]())
    assert ok > 0
    assert missed == 0


def test_the_upstream_gap_is_reported() -> None:
    (table,) = BENCHES["upstream"]()
    rows = {row[0]: row[1] for row in table.rows}
    before, clock, admission, simulated, *parts = (
        float(rows[name].strip()) for name in list(rows)[:7]
    )
    together = float(rows["together"])
    assert simulated == pytest.approx(before + clock + admission, abs=0.2)
    assert together == pytest.approx(simulated + sum(parts), abs=0.3)
    low, high = (float(ms) for ms in rows[LEFT_OVER].split(" to "))
    assert (low, high) == pytest.approx([run - together for run in RUN_MS], abs=0.6)
    assert ("parts together exceed the run" in table.notes[0]) == (high < 0)


@pytest.mark.parametrize(
    ("total_ms", "words"),
    [
        (500.0, "What is left over may be waits for the host"),
        (525.0, "What is left over may be waits for the host"),
        (576.0, "parts together exceed the run by 47 to 55 ms"),
    ],
)
def test_what_is_left_of_upstreams_run_has_either_sign(total_ms: float, words: str) -> None:
    assert words in _left_over(total_ms)


def test_profiles_agree_or_lie_where_their_reason_allows() -> None:
    table, _ = BENCHES["agreement"]()
    assert count_verdicts([table]) == (len(FAMILIES), 0)
    for family, row in zip(FAMILIES, table.rows, strict=True):
        assert (family.expected == NEAR) == (family.because == "")
        assert family.because == row[6]
        assert row[5] in ("yes", "no")
        assert family.because or row[5] == "yes"


def test_a_median_outside_the_range_of_its_reason_is_a_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = FAMILIES[1]._replace(expected=(1.2, 1.3))
    monkeypatch.setattr(bench_agreement, "FAMILIES", (family,))
    assert count_verdicts(bench_agreement.agreement()[:1]) == (0, 1)


def test_each_measured_expected_error_is_measured_again() -> None:
    measured = {one for one in EXPECTED if one.kind == "measured"}
    assert measured == {*MEASURED, SINGLE_RUN}


@pytest.mark.parametrize(
    ("of_stated", "verdict"), [(0.45, "MISS"), (0.55, "ok"), (0.99, "ok"), (1.01, "MISS")]
)
def test_an_expected_error_far_above_the_measured_one_is_a_miss_too(
    of_stated: float, verdict: str
) -> None:
    check = near_stated(GEMM_DGRAD, [of_stated * GEMM_DGRAD.error] * 3)
    assert check.verdict == verdict
    assert check.target == "2 to 4 %"


def test_published_shares_are_compared_with_ours() -> None:
    shares, causes, _ = BENCHES["shares"]()
    assert [row[0] for row in shares.rows] == ["8", "16", "32"]
    assert len(causes.rows) == 3


def test_properties_hold_on_some_cases() -> None:
    tables = properties(fraction=0.002)
    assert count_verdicts(tables) == (len(PROPERTIES), 0)
    assert [row[1] for row in tables[0].rows][:3] == ["4", "4", "20"]


def test_a_broken_property_is_a_miss_with_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(seed: int) -> None:
        assert seed != 3

    monkeypatch.setattr(bench_properties, "PROPERTIES", (Property("not 3", 5, check),))
    tables = properties()
    assert count_verdicts(tables) == (0, 1)
    assert tables[0].notes == ["not 3: failed for seeds [3]"]


def test_the_searches_find_the_proven_optimum_of_one_case() -> None:
    assert len(QUICK) == 1
    for bench in (greedy, search):
        _, cases = bench(QUICK)
        assert [row[-1] for row in cases.rows] == ["ok"]


def test_slices_of_one_sequence_hide_what_columns_cannot() -> None:
    job = ("h100-dgx", "llama3-8b", 8_192)
    case = case_of(*job)
    base, found = predict(case, baseline_plan(case)), best(case)
    assert found.plan.slices_sequences
    assert found.plan.sequence_parallel
    assert base.makespan_ns == found.baseline_ns
    assert found.along == base.makespan_ns / predict(case, found.plan).makespan_ns
    assert found.along > max(found.columns, 1.0)
    assert found.exposed[0] == base.exposed_ns / base.makespan_ns > found.exposed[1]
    assert 0.02 < found.width < 0.5
    summary, jobs = sequence_slices([job])
    gains = tuple(f"{gain:.3f}x" for gain in (found.columns, found.along))
    assert [list(row) for row in summary.rows] == [["h100-dgx", *[gains[1]] * 3]]
    assert jobs.rows[0][:3] == ("h100-dgx", "llama3-8b", "8,192")
    assert jobs.rows[0][5:7] == gains
    assert jobs.rows[0][-1] == found.plan.label


def test_missing_facts_skip_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOMINO_TUNE_FACTS", str(tmp_path / "nowhere"))
    assert main(["contention"]) == 0
    assert "skipped: no facts" in capsys.readouterr().out


def test_names_are_listed_and_the_nearest_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(BENCHES)
    assert main(["sped"]) == 2
    assert "Did you mean 'speed'?" in capsys.readouterr().err


def test_a_miss_is_counted() -> None:
    checks = [at_most("a", 0.03, 0.02), at_most("b", 0.03, 0.04), reported("c", "1")]
    assert count_verdicts([check_table("checks", checks)]) == (1, 1)
