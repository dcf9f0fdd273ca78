"""Lanes by CTA count: made on demand, once each, with the options NCCL is to be given."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from domino_tune.runtime.lanes import groups
from domino_tune.runtime.lanes.groups import (
    MEETING_BYTES,
    GroupLanes,
    group_timeout,
    meeting_lanes,
    members,
    nccl_options,
    silent_lanes,
)
from domino_tune.runtime.lanes.lane import Call, HostLane, all_reduce
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.launch_spec import LaunchSpec
from domino_tune.runtime.ops import Training
from domino_tune.runtime.session import Session
from lab.gpu.ops import single_gpu_session
from simulator.errors import InputError
from simulator.plan import SlicePlan
from simulator.schedule import DP, TP
from simulator.specs import ClusterSpec, Workload
from tests.real.domino_tune.runtime.jobs import GPT

# Silent lanes -------------------------------------------------------------------------------------
# Nothing is reduced, but ranks still meet where a number is.

pytest.importorskip("torch")

CPU = torch.device("cpu")


def add_one(call: Call) -> None:
    """Stands for a reduction, so that one that was done shows."""
    call.target.add_(1)


def test_a_silent_lane_leaves_everything_as_it_is() -> None:
    lanes = silent_lanes(CPU)
    number = torch.zeros(1)
    for lane in (TP, DP):
        handle = lanes[lane].issue("grad_norm", all_reduce(number))
        handle.wait()
        start, end = handle.ticks()
        assert start == end
    assert number.item() == 0


@pytest.mark.parametrize(("numbers", "done"), [(1, 1), (MEETING_BYTES // 4, 1), (17, 0)])
def test_ranks_meet_where_a_few_bytes_are_reduced(numbers: int, done: int) -> None:
    real = {lane: HostLane(str(lane), add_one) for lane in (TP, DP)}
    tensor = torch.zeros(numbers)
    for lane in meeting_lanes(real, CPU).values():
        lane.issue("some", all_reduce(tensor)).wait()
        lane.close()
    assert tensor.tolist() == [2 * done] * numbers
    for lane in real.values():
        lane.close()


# Lanes by CTA count -------------------------------------------------------------------------------

TWO = SlicePlan(row_slices=2, order="intra", wgrad="eager")
FEW_CTAS = SlicePlan(row_slices=2, order="intra", wgrad="eager", comm_ctas=4)
WORKLOAD = Workload(seq_length=6, micro_batch_size=2, dtype="fp32")


@pytest.fixture
def lanes(tmp_path: Path) -> Iterator[GroupLanes]:
    """Lanes of a gloo world of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    lanes = GroupLanes(LaunchSpec(tp=1), 0)
    yield lanes
    lanes.close()
    dist.destroy_process_group()


def context_of(lanes: GroupLanes) -> RankContext:
    return RankContext(
        rank=0, world_size=1, tp=1, dp=1, device=torch.device("cpu"), backend="gloo",
        lanes=lanes.default, tp_lane=lanes.tp_lane, control=dist.group.WORLD,  # type: ignore[arg-type]
        send=lambda message: None, heart=lambda: None,
    )  # fmt: skip


def test_gloo_has_its_own_choice_only(lanes: GroupLanes) -> None:
    context = context_of(lanes)
    assert context.lanes_for(0) == context.lanes
    assert lanes.tp_lane(0) is context.lanes[TP]
    with pytest.raises(InputError, match=r"comm_ctas = 4 .* gloo has none; .*nccl"):
        context.lanes_for(4)


def test_a_plan_runs_on_the_lanes_of_its_count(lanes: GroupLanes) -> None:
    session = Session(
        context=context_of(lanes), model=GPT, workload=WORKLOAD, cluster=ClusterSpec(tp=1),
        training=Training(),
    )  # fmt: skip
    assert session.executor(TWO, None).lanes == lanes.default
    with pytest.raises(InputError, match="comm_ctas = 4"):
        session.executor(FEW_CTAS, None)


def test_a_single_rank_is_silent_with_any_count() -> None:
    session = single_gpu_session(GPT, WORKLOAD, ClusterSpec(tp=2), torch.device("cpu"))
    assert session.executor(FEW_CTAS, None).lanes == session.context.lanes


def test_groups_are_made_by_all_ranks_once_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """On NCCL, which is not here: groups are recorded instead of made."""
    made: list[tuple[list[int], Any]] = []

    def new_group(ranks: list[int], *, backend: str, timeout: timedelta, pg_options: Any) -> str:
        assert backend == "nccl"
        made.append((ranks, pg_options))
        return f"group {ranks}"

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(groups, "StreamLane", lambda group, **_: SimpleNamespace(group=group))
    monkeypatch.setattr(groups, "nccl_options", lambda ctas, timeout: ctas)
    lanes = GroupLanes(LaunchSpec(tp=2, dp=2, backend="nccl"), 3)
    assert made == [([0, 1], None), ([2, 3], None), ([0, 2], None), ([1, 3], None)]
    assert lanes.default[DP].group == "group [1, 3]"  # type: ignore[attr-defined]
    four = lanes.tp_lane(4)
    assert four.group == "group [2, 3]"  # type: ignore[attr-defined]
    assert made[4:] == [([0, 1], 4), ([2, 3], 4)]
    assert lanes.tp_lane(4) is four
    assert lanes.tp_lane(0) is lanes.default[TP]
    assert len(made) == 6


def test_options_say_how_many_and_how_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's options as torch declares them; a build without NCCL has none."""

    class Options:
        def __init__(self) -> None:
            self._timeout = timedelta(minutes=10)
            self.config = SimpleNamespace(min_ctas=0, max_ctas=0)

    fake = SimpleNamespace(Options=Options)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", fake, raising=False)
    timeout = group_timeout(LaunchSpec(tp=2, backend="nccl"))
    options = nccl_options(8, timeout)
    assert (options.config.min_ctas, options.config.max_ctas) == (8, 8)
    assert options._timeout == timeout == timedelta(seconds=50)


def test_every_rank_is_in_one_group_of_each_kind() -> None:
    spec = LaunchSpec(tp=2, dp=3)
    assert members(spec, TP) == [[0, 1], [2, 3], [4, 5]]
    assert members(spec, DP) == [[0, 2, 4], [1, 3, 5]]
