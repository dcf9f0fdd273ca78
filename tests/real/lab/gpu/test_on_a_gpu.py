"""The stages' parts on a device, small and in seconds: what fails here would cost a stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from domino_tune.measure.gpu.loads import back_to_back
from domino_tune.runtime.lanes import Pace
from domino_tune.runtime.lanes.streams import EmulatedWire
from lab.gpu.admission import LAUNCHES, MAKERS
from lab.gpu.admission import measured as measured_queues
from lab.gpu.cases import PLANS, TWO_SLICES
from lab.gpu.ops import single_gpu_session
from lab.gpu.stage import Stage
from lab.gpu.sustained import marked_steps, marks_ns, plan_step, timed_replays
from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ClusterSpec, ModelSpec, Workload
from tests.real.domino_tune.runtime.jobs import GPT, LLAMA

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch sees no CUDA device"),
]
DEVICE = torch.device("cuda", 0)


def test_ctas_stamp_when_they_begin_and_end() -> None:
    stamps = torch.zeros(8, 2, dtype=torch.int64, device=DEVICE)
    for _ in range(2):  # the first run compiles
        EmulatedWire().carry(8 * 6 * 150_000, Pace(150_000, 8), stamps)
        torch.cuda.synchronize()
    begun, ended = stamps.unbind(dim=1)
    assert int((ended - begun).min()) >= 100_000
    assert int(begun.max() - begun.min()) < 1_000_000


def test_kernels_for_admission_multiply() -> None:
    torch.manual_seed(0)
    works = [make((320, 520, 128), 8) for make in MAKERS.values()]
    for work in works:
        found = work(0)
        assert isinstance(found, torch.Tensor)
        assert found.shape == (320, 520)
        assert bool(torch.isfinite(found.float()).all())


def test_a_plan_runs_as_a_graph_beside_emulated_collectives(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "clocks", 1.0, "mine", DEVICE)
    step = plan_step(stage, PLANS[1])
    assert len(back_to_back([step.replay], 0.5)) > 2
    step.require_numbers()


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
@pytest.mark.parametrize("plan", [MEGATRON, TWO_SLICES], ids=lambda plan: plan.label)
def test_ops_of_replayed_steps_are_timed(plan: SlicePlan, model: ModelSpec) -> None:
    workload = Workload(seq_length=64, micro_batch_size=2, dtype="bf16")
    long = replace(model, max_position_embeddings=64)
    session = single_gpu_session(long, workload, ClusterSpec(tp=2), DEVICE)
    steps = marked_steps(session, plan)
    moments = list(timed_replays(steps, 0.2))
    for step in steps:
        step.require_numbers()
    assert len(moments) > 4
    assert [at_ns for at_ns, _ in moments] == sorted(at_ns for at_ns, _ in moments)
    for _, op_ns in moments:
        assert len(op_ns) == len(steps[0].signatures)
        assert min(op_ns) > 0
    assert 0 <= marks_ns() < 100_000


def test_rows_beside_collectives_are_timed() -> None:
    cells = list(measured_queues((1024, 512, 512), str(DEVICE)))
    assert [cell["name"] for cell in cells] == [cell.name for cell in LAUNCHES]
    assert all(cell["together_ns"] > 0 for cell in cells)
