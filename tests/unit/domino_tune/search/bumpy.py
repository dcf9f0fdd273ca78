"""A problem with the traits of the real one: smooth on the whole, bumpy in detail, cheap."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from domino_tune.search.problem import Evaluation
from domino_tune.search.space import Space, SpaceSpec, enumerate_plans
from simulator.errors import InfeasiblePlanError
from simulator.plan import SlicePlan
from simulator.specs import ModelSpec, Workload

MODEL = ModelSpec(
    name="toy", num_hidden_layers=4, hidden_size=1024, num_attention_heads=16,
    num_key_value_heads=16, head_dim=64, intermediate_size=4096, vocab_size=1000,
    max_position_embeddings=2048,
)  # fmt: skip
SMALL = SpaceSpec(
    row_slices=(1, 2, 3, 4, 8), col_slices=(1, 2, 4), dgrad_slices=(), merge_wgrads=(False,)
)


def space_of(spec: SpaceSpec = SMALL, micro_batch_size: int = 16) -> Space:
    workload = Workload(seq_length=512, micro_batch_size=micro_batch_size)
    return enumerate_plans(MODEL, workload, spec=spec)


@dataclass(kw_only=True)
class BumpyProblem:
    """``comm``: communication beside compute = 1. ``bump``: relative height of the bumps.

    ``limit_bytes``: plans above it do not fit. ``asked`` lists what was evaluated.
    """

    plans: Sequence[SlicePlan] = field(default_factory=space_of)
    comm: float = 0.6
    bump: float = 0.03
    seed: int = 0
    limit_bytes: int = 10**12
    asked: list[SlicePlan] = field(default_factory=list)

    def evaluate(self, plan: SlicePlan) -> Evaluation:
        self.asked.append(plan)
        peak_bytes = self.peak_bytes(plan)
        if peak_bytes > self.limit_bytes:
            raise InfeasiblePlanError(f"{plan.label} needs {peak_bytes} bytes.", reason="memory")
        return Evaluation(iteration_ns=self.time_ns(plan), peak_bytes=peak_bytes)

    def time_ns(self, plan: SlicePlan) -> int:
        noise = zlib.crc32(f"{self.seed} {plan.label}".encode()) / 2**32
        return round(self._smooth(plan) * (1 + self.bump * noise) * self._order(plan))

    def lower_bound_ns(self, plan: SlicePlan) -> int:
        return int(0.94 * self._smooth(plan))

    def lower_bounds_ns(self, plans: Sequence[SlicePlan]) -> list[int]:
        return [self.lower_bound_ns(plan) for plan in plans]

    @property
    def quick_bounds_ns(self) -> list[int]:
        return [int(0.99 * self.lower_bound_ns(plan)) for plan in self.plans]

    def prior_ns(self, plan: SlicePlan) -> float:
        return self._smooth(plan) * (1 + 0.01 * plan.row_slices)

    def peak_bytes(self, plan: SlicePlan) -> int:
        return 10**9 * (40 + 2 * plan.merge_wgrad + plan.row_slices - plan.mlp_col_slices // 2)

    def _order(self, plan: SlicePlan) -> float:
        return {"greedy": 0.95, "inter": 0.97, "intra": 1.0, "paper": 1.02}[plan.order]

    def _smooth(self, plan: SlicePlan) -> float:
        rows, *pieces = plan.slices
        compute = 1 + 0.02 * (rows - 1) + 0.004 * (sum(pieces) - 4)
        hidden = 1 - 1 / (rows * math.sqrt(1 + 0.3 * (sum(pieces) - 4)))
        return 1e8 * (compute + self.comm * (1 - 0.9 * hidden))
