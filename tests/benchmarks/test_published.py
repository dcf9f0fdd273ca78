"""Published runs: each is asked as it was run, and their memory and conditions add up."""

from __future__ import annotations

import pytest

from benchmarks.bench.published import _line, published
from benchmarks.bench.runs import CI_KEYS, Run, b200_runs, ci_run, korthikanti_runs, nemotron_run
from simulator.implementation import IMPLEMENTATIONS
from simulator.peak import peak_bytes
from simulator.units import GIB


def test_a_line_goes_through_the_first_and_the_last_point() -> None:
    assert _line([(8, 100.0), (4, 60.0), (32, 340.0)]) == (10.0, 20.0)


def test_runs_are_those_without_pipelines() -> None:
    runs = b200_runs()
    assert len(runs) == 12
    assert len({run.layout for run in runs}) == 4
    assert all(run.plan.sequence_parallel for run in runs)
    assert [run.label for run in korthikanti_runs()] == ["22B, full", "22B, selective"]
    assert nemotron_run().case.cluster.nodes == 2


def test_every_condition_of_the_ci_run_changes_a_key() -> None:
    usual = IMPLEMENTATIONS["megatron-te"]
    for keys in CI_KEYS.values():
        assert ci_run("h100", keys).case.workload.implementation != usual


@pytest.mark.parametrize("run", b200_runs()[:4], ids=lambda run: run.label)
def test_memory_is_told_to_half_a_percent(run: Run) -> None:
    assert run.gib is not None
    assert peak_bytes(run.case, run.plan) / GIB == pytest.approx(run.gib, rel=0.005)


def test_the_tables() -> None:
    each, parts, conditions, checks, coverage, userbuffers, forward = published()
    assert (len(each.rows), len(parts.rows)) == (16, 4)
    assert len(conditions.rows) == 2 * (1 + len(CI_KEYS))
    assert {row[-1] for row in checks.rows} <= {"ok", "MISS"}
    assert len(coverage.rows) == 2 * 3
    assert [row[-1] for row in userbuffers.rows] == ["-"] * 3
    assert [row[0] for row in forward.rows] == [f"{1024 << power:,}" for power in range(7)]
