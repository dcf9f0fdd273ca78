"""An executor on one rank: what it refuses, and what plans share."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from domino_tune.runtime.executor import FUNCTIONS, Executor
from domino_tune.runtime.lanes.groups import silent_lanes
from domino_tune.runtime.ops import State
from simulator.build import build_schedule
from simulator.errors import InputError
from simulator.schedule import COMPUTE
from tests.real.domino_tune.runtime.cases import PLANS, all_jobs
from tests.real.domino_tune.runtime.jobs import GPT, LLAMA, Job, batch
from tests.real.domino_tune.runtime.ranks import new_state
from tests.real.domino_tune.runtime.reference import trained


def _executor(job: Job, state: State) -> Executor:
    schedule = build_schedule(job.model, job.workload, job.cluster, job.plan, job.order)
    return Executor(schedule, state, {})


@pytest.mark.parametrize("shape", [(4, 6), (5, 7), (30,), (5, 6, 1)])
def test_another_batch_is_refused(shape: tuple[int, ...]) -> None:
    job = Job(name="", model=GPT)
    executor = _executor(job, new_state(job))
    tokens, targets = batch(job, 0)
    for pair in ((torch.zeros(shape), targets), (tokens, torch.zeros(shape))):
        with pytest.raises(InputError, match=r"must be \[5, 6\].*, got \[" + str(shape[0])):
            executor.run_step(*pair)


def test_a_run_may_change_its_plan_at_every_step() -> None:
    """Weights, moments and the step count belong to the parameters that plans share."""
    job = Job(name="", model=GPT)
    first = new_state(job)
    losses = []
    for step, plan in enumerate((PLANS[1], PLANS[9], PLANS[0])):
        planned = replace(job, plan=plan)
        fresh = new_state(planned)
        state = State(
            shapes=fresh.shapes, parameters=first.parameters, training=job.training, train=True
        )
        losses.append(_executor(planned, state).run_step(*batch(job, step)).loss)
    assert losses == pytest.approx(trained(job.unsliced).losses, rel=1e-10)


def test_steps_repeat_bit_by_bit() -> None:
    job = Job(name="", model=LLAMA, plan=PLANS[9], dtype="fp32")
    runs = []
    for _ in range(2):
        state = new_state(job)
        executor = _executor(job, state)
        for step in range(2):
            executor.run_step(*batch(job, step))
        runs.append(state.trained.main)
    assert torch.equal(*runs)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_fp16_keeps_gradients_that_many_tokens_make_small(dtype: str) -> None:
    """Divided by 120,000 tokens, those of most logits are nothing in fp16."""
    norms = {}
    for used in (dtype, "fp64"):
        job = Job(name="", model=LLAMA, dp=1 << 12, dtype=used, plan=PLANS[1])
        state = new_state(job)
        assert state.loss_scale == (1 << 16 if used == "fp16" else 1)
        schedule = build_schedule(job.model, job.workload, job.cluster, job.plan, job.order)
        executor = Executor(schedule, state, silent_lanes(torch.device("cpu")))
        tokens, targets = (tensor[: job.sequences] for tensor in batch(job, 0))
        norms[used] = executor.run_step(tokens, targets).grad_norm
    assert norms[dtype] == pytest.approx(norms["fp64"], rel=0.01)


def test_every_compute_role_has_a_function() -> None:
    roles = {
        op.role.removesuffix(".again")
        for jobs in all_jobs().values()
        for job in jobs
        for op in build_schedule(job.model, job.workload, job.cluster, job.plan, job.order).ops()
        if op.lane == COMPUTE
    }
    assert roles == set(FUNCTIONS)
