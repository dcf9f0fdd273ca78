"""A gloo lane: first in, first out, on a thread of its own; its errors reach the reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from domino_tune.runtime.lanes.call import all_reduce
from domino_tune.runtime.lanes.lane import ThreadLane


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[ThreadLane]:
    """A lane over a group of one: all that is tested here is ours, not gloo's."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    lane = ThreadLane(dist.new_group([0]), "test")
    yield lane
    lane.close()
    dist.destroy_process_group()


def test_spans_follow_each_other(lane: ThreadLane) -> None:
    tensors = [torch.full((1000,), float(i)) for i in range(20)]
    handles = [lane.issue(str(i), all_reduce(tensor)) for i, tensor in enumerate(tensors)]
    handles[-1].wait()
    ends = 0
    for handle in handles:
        assert ends <= handle.span_ns[0] <= handle.span_ns[1]
        ends = handle.span_ns[1]
    assert all((tensor == i).all() for i, tensor in enumerate(tensors))


def test_an_error_is_raised_where_the_result_is_read(lane: ThreadLane) -> None:
    bad = lane.issue("bad", all_reduce(torch.ones(2, dtype=torch.int16)))
    good = lane.issue("good", all_reduce(torch.ones(2)))
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        bad.wait()
    good.wait()


def test_column_views_are_refused(lane: ThreadLane) -> None:
    with pytest.raises(AssertionError, match="piece: collectives take contiguous tensors"):
        lane.issue("piece", all_reduce(torch.ones(4, 4)[:, :2]))
