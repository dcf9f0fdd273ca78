"""Probes: lane and type of a timed collective, how skew is reported, how a budget ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from domino_tune.measure.probes import call_of, zeros_of
from domino_tune.measure.probes.compute import (
    BURST,
    LEAST_SKEW_ERROR,
    CollectiveProbe,
    PlanProbe,
    PlayedStep,
    StepProbe,
    _beside,
    lane_of,
    skew_message,
    step_excess,
)
from domino_tune.measure.probes.contention import contention_probe
from domino_tune.measure.probes.rank_job import Budget
from domino_tune.runtime.lanes import Pace
from domino_tune.runtime.lanes.groups import GroupLanes
from domino_tune.runtime.lanes.streams import emulated_lane
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.runtime.ops import Training
from domino_tune.runtime.session import Session
from simulator.ops import Collective, CollectiveKind
from simulator.plan import MEGATRON
from simulator.schedule import DP, TP, Timeline
from simulator.specs import ClusterSpec, Workload
from tests.support.probing import TINY

MS = 1_000_000


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RankContext]:
    """A world of one gloo rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    lanes = GroupLanes(LaunchSpec(tp=1), 0)
    yield RankContext(
        rank=0, world_size=1, tp=1, dp=1, device=torch.device("cpu"), backend="gloo",
        lanes=lanes.default, tp_lane=lanes.tp_lane, control=dist.group.WORLD,  # type: ignore[arg-type]
        send=lambda message: None, heart=lambda: None,
    )  # fmt: skip
    lanes.close()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("cluster", "group", "lane"),
    [
        (ClusterSpec(tp=2, dp=2, ranks_per_node=2), (1, 2), TP),
        (ClusterSpec(tp=2, dp=2, ranks_per_node=2), (2, 1), DP),
        (ClusterSpec(tp=2, dp=2, ranks_per_node=1), (2, 1), TP),  # either: both lie alike
        (ClusterSpec(tp=4, dp=2, ranks_per_node=8), (1, 2), DP),
        (ClusterSpec(tp=16, dp=16, ranks_per_node=8), (2, 8), TP),
        (ClusterSpec(tp=16, dp=16, ranks_per_node=8), (16, 1), DP),
    ],
)
def test_a_collective_is_timed_on_the_lane_that_lies_as_it_does(
    cluster: ClusterSpec, group: tuple[int, int], lane: int
) -> None:
    assert group in (cluster.tp_group, cluster.dp_group)
    assert lane_of(Collective("all_reduce", 4096, *group), cluster) == lane


@pytest.mark.parametrize(("dtype", "elements"), [("fp32", 250), ("bf16", 500), ("fp64", 125)])
def test_a_collective_reduces_what_it_says(context: RankContext, dtype: str, elements: int) -> None:
    probe = CollectiveProbe(context, Collective("all_reduce", 1000, 1, 1, 0, dtype), TP)
    assert probe.call.target.numel() == elements
    assert probe.call.target.nbytes == 1000
    assert probe.lane is context.lanes[TP]
    assert CollectiveProbe(context, probe.collective, DP).lane is context.lanes[DP]


@pytest.mark.parametrize(
    ("op", "shapes"), [("all_gather", (32, 128)), ("reduce_scatter", (128, 32))]
)
def test_a_gather_and_a_scatter_have_the_full_tensor_on_one_side(
    op: CollectiveKind, shapes: tuple[int, int]
) -> None:
    call = call_of(Collective(op, 512, 2, 2), torch.device("cpu"))
    assert (call.source.numel(), call.target.numel()) == tuple(2 * n for n in shapes)
    assert call.size_bytes == 512


def test_a_message_has_one_element_at_least() -> None:
    assert zeros_of(1, torch.float32, torch.device("cpu")).numel() == 1


def test_a_collective_is_timed_burst_by_burst(context: RankContext) -> None:
    probe = CollectiveProbe(context, Collective("all_reduce", 1000, 1, 1, 0, "fp32"), TP)
    probe.warm_up()
    assert probe.spans_ns == []
    for rounds in (1, 2):
        probe.measure()
        assert len(probe.spans_ns) == len(probe.behind_ns) == rounds * BURST
    assert min(probe.spans_ns) > 0
    message = probe.message(7.0)
    assert message["samples"] == 2 * BURST
    assert message["signature"] == ["all_reduce", 1000, 1, 1, 0, "fp32", "auto", 0, 0]
    assert min(probe.spans_ns) <= 1e3 * message["median_us"] <= max(probe.spans_ns)
    assert min(probe.behind_ns) <= 1e3 * message["behind_us"] <= max(probe.behind_ns)
    assert message["hand_over_us"] == 7.0


def test_all_reduces_that_outlast_the_step_say_nothing_of_themselves(context: RankContext) -> None:
    """None of them lies within the step, and none is mistaken for one that was not slowed."""
    lane = emulated_lane(lambda call: Pace(600 * MS), context.device)
    session = Session(
        context=replace(context, lanes={TP: lane, DP: lane}), model=TINY,
        workload=Workload(seq_length=16, micro_batch_size=2, dtype="fp32"),
        cluster=ClusterSpec(tp=1), training=Training(),
    )  # fmt: skip
    probe = contention_probe(session, MEGATRON, Collective("all_reduce", 1024, 1, 1, 0, "fp32"))
    probe.warm_up()
    probe.measure()
    lane.close()
    assert probe.samples == 1
    row = probe.row()
    assert set(row["compute"]) == {"gemm", "attention", "pointwise"}
    assert "collective" not in row


class _Played:
    """Stands for a probe: every rank's durations of each step, in ns; the last ``beside`` of them
    are of ops that ran alongside collectives.
    """

    def __init__(self, *steps: list[list[int]], beside: int = 0) -> None:
        self.steps = [
            [PlayedStep(rank, [i >= len(rank) - beside for i in range(len(rank))]) for rank in step]
            for step in steps
        ]


def skew(*steps: list[list[int]]) -> dict[str, Any]:
    return skew_message([cast("StepProbe", _Played(step)) for step in steps], 0.01)


def test_equally_fast_ranks_do_not_wait() -> None:
    found = skew([[MS] * 10] * 3, [[MS] * 10] * 3)
    assert (found["slowest"], found["step_excess"], found["samples"]) == (1.0, 0.01, 2)
    assert found["error"] == LEAST_SKEW_ERROR
    assert found["rows"]
    assert {wait_us for _, wait_us in found["rows"]} == {0.0}


def test_a_rank_that_is_always_slower_is_the_steps_and_nobody_waits_beyond_it() -> None:
    found = skew([[MS] * 20, [MS * 6 // 5] * 20])
    assert found["slowest"] == pytest.approx(1.2 / 1.1)
    assert all(wait_us == pytest.approx(0.0, abs=1e-6) for _, wait_us in found["rows"])


def test_ranks_that_are_slow_in_turn_wait_though_no_step_is_longer() -> None:
    """Ops of 1.1 and 1.3 ms in turn: equal over a step, 0.1 ms after the mean over one op."""
    in_turn = [MS * 11 // 10, MS * 13 // 10] * 20
    found = skew([in_turn, in_turn[1:] + in_turn[:1]])
    assert found["slowest"] == 1.0
    rows = dict(found["rows"])
    assert rows[1024.0] == pytest.approx(100 * 1024 / 1200, rel=0.01)
    assert rows[2048.0] == pytest.approx(0.0, abs=1e-6)  # two ops: both ranks had one of each
    assert list(rows) == sorted(rows)


def test_compute_beside_collectives_has_rows_of_its_own() -> None:
    """Ops of 1 ms each, equally fast; then ops of 1.1 and 1.3 ms in turn alongside collectives."""
    in_turn = [MS * 11 // 10, MS * 13 // 10] * 20
    ranks = [[MS] * 40 + in_turn, [MS] * 40 + in_turn[1:] + in_turn[:1]]
    found = skew_message([cast("StepProbe", _Played(ranks, beside=40))], 0.01)
    assert {wait_us for _, wait_us in found["rows"]} == {0.0}
    assert dict(found["beside"])[1024.0] == pytest.approx(100 * 1024 / 1200, rel=0.01)
    assert found["slowest"] == 1.0


@pytest.mark.parametrize(("sums_ns", "excess"), [([8, 9, 100], 1 / 8), ([7], 0.0), ([], None)])
def test_steps_take_longer_than_the_medians_of_their_ops_add_up_to(
    context: RankContext, sums_ns: list[int], excess: float | None
) -> None:
    """Medians of 3 and 2 ns, two ops of the first kind and one of the other: 8 ns. Hiccups, and
    steps that seem shorter, do not count.
    """
    one, other = (Collective("all_reduce", size, 1, 2) for size in (1, 2))
    ops = [SimpleNamespace(signature=signature) for signature in (one, other, one)]
    probe = SimpleNamespace(sums_ns=sums_ns, step=SimpleNamespace(ops=ops))
    found: dict[Any, list[int]] = {one: [3, 3, 90], other: [2, 1, 2]}
    assert step_excess(context, [cast("PlanProbe", probe)], found) == excess


def test_an_op_counts_as_beside_where_collectives_run_for_half_of_it() -> None:
    timeline = cast("Timeline", SimpleNamespace(comm_spans=[(100, 200), (250, 300)]))
    spans = [(0, 100), (90, 130), (150, 250), (140, 300), (60, 139), (300, 300)]
    assert _beside(spans, timeline) == [False, True, True, True, False, False]


def test_the_error_of_skew_is_what_steps_differ_by() -> None:
    steps = [[[MS] * 10, [MS + extra] * 10] for extra in (0, MS // 5)]
    found = skew(*steps)
    factors = [1.0, 1.2 / 1.1]
    assert found["error"] == pytest.approx((factors[1] - factors[0]) / 2 / (sum(factors) / 2))


class _World:
    """Stands for a context of two ranks; the other rank answers the opposite."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []

    def all_gather_objects(self, item: bool) -> list[bool]:
        return [item, not item]

    def report(self, message: dict[str, Any]) -> None:
        self.reports.append(message)


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, to be set."""
    times = [50.0]
    monkeypatch.setattr("domino_tune.measure.probes.rank_job.time.monotonic", lambda: times[0])
    return times


def test_rank_0s_clock_decides_for_all(now_s: list[float]) -> None:
    budget = Budget(cast("RankContext", _World()), 10.0)
    assert not budget.spent()
    now_s[0] += 10.5
    assert budget.spent()


def test_without_a_budget_it_is_never_spent(now_s: list[float]) -> None:
    budget = Budget(cast("RankContext", _World()), None)
    now_s[0] += 1e9
    assert not budget.spent()


@pytest.mark.parametrize(("seconds", "remaining"), [(None, 12.0), (10.0, 6.0), (3.0, 0.0)])
def test_what_remains_is_told_within_the_budget(
    now_s: list[float], seconds: float | None, remaining: float
) -> None:
    world = _World()
    budget = Budget(cast("RankContext", world), seconds)
    budget.total = 4
    now_s[0] += 4.0
    budget.round_done()
    (told,) = world.reports
    assert (told["round"], told["rounds"], told["elapsed_s"]) == (1, 4, 4.0)
    assert told["remaining_s"] == remaining
