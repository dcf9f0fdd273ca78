"""A rank's session: executors of plans over one set of parameters, and a random batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch

from domino_tune.runtime.clock import Clock
from domino_tune.runtime.executor import Executor
from domino_tune.runtime.lanes.lane import Lane
from domino_tune.runtime.launch.context import RankContext
from domino_tune.runtime.ops import State, Training
from domino_tune.runtime.parameters import Parameters
from simulator.build import build_schedule
from simulator.implementation import Implementation
from simulator.issue_order import LayerOrder
from simulator.plan import SlicePlan
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


@dataclass(kw_only=True)
class Session:
    """One model, workload and cluster on this rank. Plans share parameters, as in a training run
    that changes its plan. ``exact_weights`` off draws them on the device, for timing only."""

    context: RankContext
    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    training: Training
    exact_weights: bool = True

    @classmethod
    def of(cls, context: RankContext, payload: Mapping[str, Any]) -> Session:
        """Return the session of a payload: fields of the specs under model, workload, cluster."""
        return cls(
            context=context,
            model=ModelSpec(**payload["model"]),
            workload=_workload(payload["workload"]),
            cluster=ClusterSpec(**payload["cluster"]),
            training=Training(),
        )

    @cached_property
    def parameters(self) -> Parameters:
        """Return this rank's shards."""
        return Parameters(
            self.model,
            self.cluster,
            self.context.tp_rank,
            dtype=DTYPES[self.workload.dtype],
            device=self.context.device,
            seed=self.training.seed,
            exact=self.exact_weights,
            beat=self.context.beat,
        )

    def executor(
        self,
        plan: SlicePlan,
        order: LayerOrder | None,
        lanes: Mapping[int, Lane] | None = None,
        clock: Clock | None = None,
    ) -> Executor:
        """Return an executor of ``plan``; ``order`` None is the plan's own order, ``lanes`` None
        those of the plan's CTA count. Raise InputError for a CTA count that the backend does not
        have."""
        state = State(
            shapes=Shapes(
                model=self.model, workload=self.workload, cluster=self.cluster, plan=plan
            ),
            parameters=self.parameters,
            training=self.training,
            tp_rank=self.context.tp_rank,
            dp_rank=self.context.dp_rank,
        )
        schedule = build_schedule(self.model, self.workload, self.cluster, plan, order)
        if lanes is None:
            lanes = self.context.lanes_for(plan.comm_ctas)
        return Executor(schedule, state, lanes, clock)

    @cached_property
    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random tokens and targets of this replica, [sequences of a step, seq_length]."""
        generator = torch.Generator().manual_seed(self.training.seed + self.context.dp_rank)
        sequences = self.workload.micro_batch_size * self.workload.grad_accumulation
        shape = (sequences, self.workload.seq_length + 1)
        drawn = torch.randint(0, self.model.vocab_size, shape, generator=generator)
        drawn = drawn.to(self.context.device)
        return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def _workload(plain: Mapping[str, Any]) -> Workload:
    """Return the workload from its JSON form."""
    return Workload(**{**plain, "implementation": Implementation(**plain["implementation"])})
