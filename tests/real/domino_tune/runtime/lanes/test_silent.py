"""Silent lanes: nothing is reduced, but ranks still meet where a number is."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.runtime.lanes.call import Call, all_reduce
from domino_tune.runtime.lanes.lane import HostLane
from domino_tune.runtime.lanes.silent import MEETING_BYTES, meeting_lanes, silent_lanes
from simulator.schedule import DP, TP

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
