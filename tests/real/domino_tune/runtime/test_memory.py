"""What the simulator says of memory is what the runtime allocates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from domino_tune.runtime.executor import Executor, WatchedValues, storage_bytes
from simulator.build import build_schedule
from simulator.memory import live_peaks
from simulator.plan import MEGATRON, SlicePlan
from simulator.specs import ModelSpec
from tests.real.domino_tune.runtime.cases import PLANS, SLICED, greedy_order
from tests.real.domino_tune.runtime.jobs import GPT, LLAMA, Job, batch
from tests.real.domino_tune.runtime.ranks import new_state

WIDE: dict[str, Any] = {"vocab_size": 128, "hidden_size": 240, "head_dim": 32}
"""Shapes beside which a norm's statistics are small; the vocabulary needs no padding."""


class ValuesToo(WatchedValues):
    """Remembers the most bytes of values alone, too."""

    values_peak = 0

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        super().__setitem__(name, value)
        self.values_peak = max(self.values_peak, storage_bytes(self.values()))


@pytest.mark.parametrize("plan", [MEGATRON, PLANS[1], PLANS[3], SLICED], ids=lambda p: p.label)
@pytest.mark.parametrize("model", [GPT, replace(GPT, hidden_dropout=0.0), LLAMA])
def test_live_bytes_are_the_simulators(model: ModelSpec, plan: SlicePlan) -> None:
    job = Job(
        name="", model=replace(model, **WIDE, max_position_embeddings=32), plan=plan, dtype="fp32",
        sequences=6, seq_length=32,
    )  # fmt: skip
    order = greedy_order(job) if plan is SLICED else None
    schedule = build_schedule(job.model, job.workload, job.cluster, plan, order)
    state = new_state(job)
    watched = state.values = ValuesToo(state)
    Executor(schedule, state, {}).run_step(*batch(job, 0))
    predicted = max(live_peaks(schedule)).whole
    # Dropout masks are saved, not values. Statistics of norms are what the simulator leaves out.
    if not model.hidden_dropout:
        assert watched.values_peak == predicted
    assert predicted <= watched.all_peak < 1.005 * predicted
