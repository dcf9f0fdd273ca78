"""From ranks' messages to a file that is valid at every moment; real ranks, a tiny model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domino_tune.measure.coverage import coverage
from domino_tune.measure.probe_set import collective_key, timed_ops
from domino_tune.measure.profiling import (
    Keeper,
    add_message,
    add_ops,
    measure_profile,
    outliers_of,
    with_peaks,
)
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.store.profiles import load_profile
from simulator.ops import Gemm
from simulator.specs import ClusterSpec, Workload
from tests.support.probing import TINY, collective_message, empty, op_row, timed

pytest.importorskip("torch")

JOB = Workload(seq_length=16, micro_batch_size=2, dtype="fp32")
PROBES = coverage(TINY, JOB, ClusterSpec(tp=2, ranks_per_node=2), memory_bytes=1 << 33)
OPS = sorted(PROBES.ops, key=repr)


def plan_message(ops: list[Any], samples: int = 20) -> dict[str, Any]:
    overhead = {"overhead_us": 1.5, "overhead_samples": 3}
    return {"kind": "plan", "ops": [op_row(op, samples) for op in ops], **overhead}


def test_of_one_run_the_row_with_most_samples_stays() -> None:
    profile = empty()
    for message in (
        plan_message(OPS), plan_message(OPS[:9], samples=30), plan_message(OPS, samples=25),
    ):  # fmt: skip
        profile = add_message(profile, message)
    assert sorted(timed_ops(profile).values()) == [25] * (len(OPS) - 9) + [30] * 9


def test_runs_cut_short_add_up_until_nothing_is_lacking(tmp_path: Path) -> None:
    profile = empty()
    for known in (0, 7, 14):
        assert PROBES.lacking(profile, 20, ranks=2).ops == PROBES.ops
        assert set(timed_ops(profile).values()) in ({known}, set())
        keeper = Keeper(profile, tmp_path / "here.json", PROBES.ops)
        for samples in (3, 7):
            keeper.add(plan_message(OPS, samples))
        profile = keeper.profile
    assert set(timed_ops(profile).values()) == {21}
    assert PROBES.lacking(profile, 20, ranks=2).ops == frozenset()


def test_the_file_follows_but_is_not_written_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("domino_tune.measure.profiling.time.monotonic", lambda: now_s[0])
    path = tmp_path / "here.json"
    keeper = Keeper(empty(), path, PROBES.ops)
    keeper.add({"kind": "progress", "round": 1, "rounds": 2, "elapsed_s": 1.0, "remaining_s": 1.0})
    assert not path.exists()
    keeper.add(plan_message(OPS[:3]))
    assert len(timed_ops(load_profile(path))) == 3
    keeper.add(plan_message(OPS[:5]))
    assert len(timed_ops(load_profile(path))) == 3
    now_s[0] += 1.0
    keeper.add(plan_message(OPS[:6]))
    assert len(timed_ops(load_profile(path))) == 6
    keeper.add(plan_message(OPS))
    keeper.save()
    assert load_profile(path) == keeper.profile


def test_ops_without_a_probe_are_not_stored(tmp_path: Path) -> None:
    stray = Gemm(1, 2, 3, "forward", "fp32")
    keeper = Keeper(empty(), tmp_path / "here.json", PROBES.ops)
    keeper.add(plan_message([stray, OPS[0]]))
    assert set(timed_ops(keeper.profile)) == {OPS[0]}


def test_peaks_are_what_ops_reached() -> None:
    profile = timed(PROBES)
    machine = with_peaks(profile).machine
    assert profile.gemm is not None
    assert profile.pointwise is not None
    for gemm in profile.gemm.rows:
        reached = 2 * gemm.m * gemm.n * gemm.k / gemm.median_us / 1e6
        assert reached <= machine.peak_tflops["fp32"] * 1.001
    for row in profile.pointwise.rows:
        reached = (row.bytes_read + row.bytes_written) / row.median_us / 1e3
        assert reached <= machine.memory_bandwidth_gb_s * 1.001
    assert machine.peak_tflops["bf16"] == profile.machine.peak_tflops["bf16"]  # nobody timed it
    assert with_peaks(empty()) == empty()


def test_rows_that_spread_are_outliers_unless_short() -> None:
    rows = [op_row(op, 20) for op in OPS if isinstance(op, Gemm)][:3]
    rows[0] |= {"median_us": 1000.0, "spread_us": 300.0}
    rows[1] |= {"median_us": 10.0, "spread_us": 9.0}
    rows[2] |= {"median_us": 1000.0, "spread_us": 10.0}
    (found,) = outliers_of(add_ops(empty(), rows))
    assert (found.section, found.spread) == ("gemm", 0.3)
    slow = {**collective_message(PROBES.collectives[0], 20), "median_us": 5e3, "spread_us": 5e3}
    assert [o.section for o in outliers_of(add_message(empty(), slow))] == ["collectives"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Mapping[str, Any]]]:
    """What two real ranks measured, and what they said."""
    path = tmp_path_factory.mktemp("profiles") / "here.json"
    heard: list[Mapping[str, Any]] = []
    measure_profile(empty(), PROBES, LaunchSpec(tp=2), path, samples=3, listener=heard.append)
    return path, heard


def test_ranks_measure_all_probes(measured: tuple[Path, list[Mapping[str, Any]]]) -> None:
    path, heard = measured
    profile = load_profile(path)
    assert set(timed_ops(profile)) == PROBES.ops
    assert PROBES.lacking(profile, 3, ranks=2).is_empty
    assert profile.contention is not None
    assert "Assumed: two collectives at once" in profile.contention.provenance.note
    assert profile.skew is not None
    assert profile.skew.fit.samples == 2 * PROBES.cases[0].rounds(3)
    assert heard[-1] == {"kind": "end", "complete": True}
    assert [m["round"] for m in heard if m["kind"] == "progress"] == list(
        range(1, 1 + sum(m["kind"] == "progress" for m in heard))
    )


def test_a_budget_of_no_time_ends_at_once_and_leaves_a_valid_file(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    heard: list[Mapping[str, Any]] = []
    profile = measure_profile(
        empty(), PROBES, LaunchSpec(tp=2), path, samples=50, seconds=1e-6, listener=heard.append
    )
    assert heard == [{"kind": "end", "complete": False}]
    assert profile == empty()
    assert not path.exists()


def test_the_same_command_twice_on_a_budget_counts_both(tmp_path: Path) -> None:
    """Far more timings are missing than either run has time for."""
    path, profile, counts = tmp_path / "here.json", empty(), []
    for _ in range(2):
        left = PROBES.lacking(profile, 4000, ranks=2)
        measure_profile(profile, left, LaunchSpec(tp=2), path, samples=4000, seconds=1.0)
        profile = load_profile(path)
        counts.append(timed_ops(profile))
    first, both = counts
    assert all(both[op] >= first[op] for op in first)
    assert any(both[op] > first[op] > 0 for op in first)


def test_messages_of_two_groups_go_over_their_own_lanes(tmp_path: Path) -> None:
    """With tp = dp both groups have two ranks, and only the place of these tells them apart."""
    cluster = ClusterSpec(tp=2, dp=2, ranks_per_node=2)
    probes = coverage(TINY, JOB, cluster, memory_bytes=1 << 33)
    case = replace(probes.cases[0], plans=probes.cases[0].plans[:1])
    found = measure_profile(
        empty(), replace(probes, cases=(case,)), LaunchSpec(tp=2, dp=2), tmp_path / "here.json",
        samples=3,
    )  # fmt: skip
    assert found.collectives is not None
    assert {row.key for row in found.collectives.rows} == {
        collective_key(c) for c in probes.collectives
    }  # fmt: skip
    assert {(row.nodes, row.per_node) for row in found.collectives.rows} == {(1, 2), (2, 1)}
    assert found.contention is not None
    assert "different links" not in found.contention.provenance.note  # TP inside, DP between nodes
    assert found.contention.fit.other_links.factor >= 1.0


def test_one_rank_measures_a_shard_of_a_larger_group(tmp_path: Path) -> None:
    """Compute of one of four ranks, alone: what a machine with one GPU can say of four."""
    probes = coverage(TINY, JOB, ClusterSpec(tp=4, ranks_per_node=4), memory_bytes=1 << 33)
    alone = replace(probes, cases=(replace(probes.cases[0], plans=probes.cases[0].plans[:2]),))
    path = tmp_path / "shard.json"
    profile = measure_profile(empty(1), alone, LaunchSpec(tp=1), path, samples=3)
    assert profile.gemm is not None
    assert {(r.n, r.k) for r in profile.gemm.rows if r.layout == "forward"} >= {(64 * 3 // 4, 64)}
    assert profile.collectives is None
