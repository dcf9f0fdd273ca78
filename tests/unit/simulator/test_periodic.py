"""The periodic shortcut is exact: 0 ns off the full simulation, host, micro-batches and all."""

from __future__ import annotations

import pytest

from simulator.build import build_schedule
from simulator.compiler import compile_program
from simulator.plan import SlicePlan
from simulator.presets import MODELS
from simulator.program import Loop, Program
from simulator.schedules import fixed_order
from simulator.specs import ClusterSpec, Workload
from tests.support.by_hand import totals
from tests.unit.simulator.cases import cost_model
from tests.unit.simulator.periodic_checks import check_shortcut_is_exact


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("block", range(0, 80, 20))
def test_shortcut_is_exact_on_random_cases(block: int) -> None:
    for seed in range(block, block + 20):
        check_shortcut_is_exact(seed, layers=16, record_ops=1500)


def deep_program(contention: float, cuda_graph: bool) -> Program:
    """GPT-3 13B with four micro-batches, two replicas and two row slices."""
    plan = SlicePlan(row_slices=2, order="inter", wgrad="eager")
    workload = Workload(seq_length=1024, micro_batch_size=8, grad_accumulation=4)
    schedule = build_schedule(
        MODELS["gpt3-13b"], workload, ClusterSpec(tp=8, dp=2), plan, fixed_order(plan)
    )
    return compile_program(schedule, cost_model(contention, cuda_graph))


@pytest.mark.parametrize("contention", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_shortcut_is_exact_on_a_deep_model(contention: float, cuda_graph: bool) -> None:
    program = deep_program(contention, cuda_graph)
    assert totals(program) == totals(program, shortcut=False)


def test_programs_keep_the_loops_of_micro_batches_and_layers() -> None:
    program = deep_program(0.0, True)
    micros = [part for part in program.root.body if isinstance(part, Loop)]
    assert [micro.count for micro in micros] == [1, 2, 1]
    for micro in micros:
        assert max(loop.count for loop in micro.body if isinstance(loop, Loop)) > 30
