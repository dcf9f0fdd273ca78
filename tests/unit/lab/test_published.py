"""Published runs: each is asked as it was run, and their memory and conditions add up."""

from __future__ import annotations

import pytest

from lab.bench.published import _line, published
from lab.bench.rivals import rivals
from lab.bench.runs import (
    CI_KEYS,
    Run,
    b200_runs,
    ci_run,
    korthikanti_runs,
    userbuffers_runs,
    vtrain_runs,
)
from simulator.implementation import IMPLEMENTATIONS
from simulator.peak import peak_bytes
from simulator.units import GIB


def test_a_line_goes_through_the_first_and_the_last_point() -> None:
    assert _line([(8, 100.0), (4, 60.0), (32, 340.0)]) == (10.0, 20.0)


def test_runs_have_the_layouts_of_their_tables() -> None:
    runs = b200_runs()
    assert len(runs) == 17
    assert len({run.layout for run in runs}) == 7
    assert all(run.plan.sequence_parallel == (run.case.cluster.tp > 1) for run in runs)
    shapes = [(run.label, run.case.cluster.pp, run.case.cluster.vpp) for run in korthikanti_runs()]
    assert shapes == [
        ("22B, full", 1, 1), ("22B, selective", 1, 1),
        ("175B, full", 8, 3), ("175B, selective", 8, 3),
    ]  # fmt: skip
    assert [run.case.cluster.nodes for run in userbuffers_runs()] == [2, 16]
    assert len(vtrain_runs()) == 107
    for run in vtrain_runs():
        cluster = run.case.cluster
        assert cluster.world_size == cluster.tp * cluster.dp * cluster.pp


def test_every_condition_of_the_ci_run_changes_a_key() -> None:
    usual = IMPLEMENTATIONS["megatron-te"]
    for keys in CI_KEYS.values():
        assert ci_run("h100", keys).case.workload.implementation != usual


@pytest.mark.parametrize("run", b200_runs()[:4] + b200_runs()[-2:], ids=lambda run: run.label)
def test_memory_is_told_to_0_6_percent(run: Run) -> None:
    assert run.gib is not None
    assert peak_bytes(run.case, run.plan) / GIB == pytest.approx(run.gib, rel=0.006)


def test_the_tables() -> None:
    each, parts, conditions, checks, coverage, forward = published()
    assert (len(each.rows), len(parts.rows)) == (23, 4)
    assert len(conditions.rows) == 2 * (1 + len(CI_KEYS))
    assert {row[-1] for row in checks.rows} <= {"ok", "MISS"}
    assert len(coverage.rows) == 2 * 3
    assert [row[0] for row in forward.rows] == [f"{1024 << power:,}" for power in range(7)]


@pytest.mark.thorough
def test_rivals_are_within_the_limits_of_what_was_published() -> None:
    flux, async_tp, userbuffers, strategies, _ = rivals()
    for table in (flux, async_tp, userbuffers):
        assert {row[-1] for row in table.rows} <= {"ok", "-"}
    assert len(flux.rows) == 8
    assert len(strategies.rows) == 12
