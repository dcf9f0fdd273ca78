"""Slices that merged weight gradients read as one: written side by side, or copied by an op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.runtime.executor import Executor
from domino_tune.runtime.lanes.groups import silent_lanes
from domino_tune.runtime.ops import Rooms, Side, as_one, layers
from simulator.build import build_schedule
from simulator.plan import SlicePlan
from simulator.specs import ModelSpec
from tests.real.domino_tune.runtime.jobs import GPT, LLAMA, Job, batch
from tests.real.domino_tune.runtime.ranks import new_state

ROWS = SlicePlan(row_slices=2, merge_wgrad=True, order="intra", wgrad="eager")
POSITIONS = replace(ROWS, slice_dim="sequence")
DRY = replace(GPT, name="dry", hidden_dropout=0.0)


def test_neighbours_are_a_view_and_others_a_copy() -> None:
    whole = torch.arange(24.0).view(8, 3)
    assert as_one([whole]).data_ptr() == whole.data_ptr()
    beside = as_one([whole[:2], whole[2:5], whole[5:]])
    assert beside.data_ptr() == whole.data_ptr()
    assert torch.equal(beside, whole)
    for parts in ([whole[:2], whole[4:]], [whole[4:], whole[:4]], [whole[:4], whole[4:].clone()]):
        copy = as_one(parts)
        assert copy.data_ptr() != parts[0].data_ptr()
        assert torch.equal(copy, torch.cat(parts))
    columns = as_one([whole[:4, :2], whole[4:, :2]])
    assert torch.equal(columns, whole[:, :2])


def test_rooms_are_side_by_side_whoever_comes_first() -> None:
    rooms, like = Rooms({"a0": Side("a0", 0), "a1": Side("a0", 1)}, [2, 3]), torch.zeros(1, 4)
    for _ in range(2):  # micro-batch by micro-batch
        second, first = rooms.room("a1", 3, 4, like), rooms.room("a0", 2, 4, like)
        assert as_one([first, second]).data_ptr() == first.data_ptr()
    assert rooms.room("other", 2, 4, like).shape == (2, 4)
    half = rooms.room("a0", 1, 4, like)  # a share of its tokens stands alone
    assert half.untyped_storage().nbytes() == half.nbytes


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("plan", [ROWS, POSITIONS], ids=lambda plan: plan.slice_dim)
@pytest.mark.parametrize("model", [GPT, DRY, LLAMA], ids=lambda model: model.name)
def test_no_weight_gradient_copies_what_no_op_copies(
    model: ModelSpec, plan: SlicePlan, sequence_parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(plan, sequence_parallel=sequence_parallel)
    job = Job(name="", model=model, tp=2, plan=plan, sequences=4, seq_length=8)
    schedule = build_schedule(job.model, job.workload, job.cluster, plan, None)
    views: list[bool] = []

    def spied(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        found = as_one(tensors)
        views.append(found.data_ptr() == tensors[0].data_ptr())
        return found

    monkeypatch.setattr(layers, "as_one", spied)
    executor = Executor(schedule, new_state(job), silent_lanes(torch.device("cpu")))
    executor.run_step(*batch(job, 0))
    assert len(views) == 2 * 4 * model.num_hidden_layers
    assert all(views)
    assert not executor.state.rooms._open
