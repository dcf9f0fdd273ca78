"""What benches compute and documents claim: misses count, and published numbers are held."""

from __future__ import annotations

from pathlib import Path

import pytest

from domino_tune.verbs.resolve import baseline_plan
from lab.bench.__main__ import BENCHES, Part, main
from lab.bench.accuracy import MEASURED, contention, near_stated
from lab.bench.baselines import long_case, sliced
from lab.bench.common import Run, runs
from lab.bench.published import DENSE, Held, limits, memory
from lab.verdict import SkippedError, at_most, check_table, count_verdicts, reported
from simulator.dtypes import GIB
from simulator.lookup.expected import EXPECTED, GEMM_DGRAD, SINGLE_RUN
from simulator.memory import peak_bytes
from simulator.predict import predict


@pytest.mark.parametrize(("value", "code"), [(0.02, 0), (0.04, 1)])
def test_a_run_exits_with_1_for_a_miss_and_says_what_it_skips(
    value: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(part: str) -> Part:
        if part == "a.skip":
            raise SkippedError("no facts")
        return lambda: [check_table("checks", [at_most("a", 0.03, value), reported("b", "1")])]

    monkeypatch.setitem(BENCHES, "some", {"prints": "numbers", "parts": ["a.skip", "a.table"]})
    monkeypatch.setattr("lab.bench.__main__.find", find)
    assert main(["some"]) == code
    printed = capsys.readouterr().out
    assert "skipped: a.skip: no facts" in printed
    assert f"{1 - code} ok, {code} missed" in printed


def test_the_nearest_name_is_suggested_and_every_bench_is_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["sped"])
    assert "Did you mean 'speed'?" in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(BENCHES)


def test_the_chance_to_fit_is_that_of_its_tables() -> None:
    """And every published run that ran is recommended."""
    assert count_verdicts(memory()) == (4, 0)


@pytest.mark.facts
def test_contention_is_told_to_its_limits(facts_dir: Path) -> None:
    assert count_verdicts(contention()) == (3, 0)


def test_each_measured_expected_error_is_measured_again() -> None:
    measured = {one for one in EXPECTED if one.kind == "measured"}
    assert measured == {*MEASURED, SINGLE_RUN}


@pytest.mark.parametrize(
    ("of_stated", "ok"), [(0.45, False), (0.55, True), (0.99, True), (1.01, False)]
)
def test_an_expected_error_far_above_the_measured_one_is_a_miss_too(
    of_stated: float, ok: bool
) -> None:
    assert near_stated(GEMM_DGRAD, [of_stated * GEMM_DGRAD.error] * 3).ok is ok


def test_slices_of_one_sequence_hide_what_columns_cannot() -> None:
    case = long_case("h100-dgx", "llama3-8b", 8_192)
    gain, plan = sliced(case)
    assert gain == predict(case, baseline_plan(case)).makespan_ns / predict(case, plan).makespan_ns
    assert gain > 1.0


@pytest.mark.parametrize(
    "run", runs("simumax")[:4] + runs("simumax")[-2:], ids=lambda run: run.label
)
def test_memory_of_published_runs_is_told_to_0_6_percent(run: Run) -> None:
    assert run.gib is not None
    assert peak_bytes(run.case, run.plan) / GIB == pytest.approx(run.gib, rel=0.006)


def test_published_iterations_are_as_far_off_as_documents_say() -> None:
    misses = [
        row[0] for row in limits([Held.of(run) for run in runs(*DENSE)]).rows if row[-1] == "MISS"
    ]
    assert misses == ["simumax, plain: mean error", "simumax, plain: worst error"]
