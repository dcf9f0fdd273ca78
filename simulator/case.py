"""Case: a model, a workload, a cluster and a profile; everything except the plan."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simulator.cost import NO_CHANGES, Changes, CostModel
from simulator.errors import InfeasiblePlanError
from simulator.plan import SlicePlan, check_plan_fits
from simulator.profile import Profile
from simulator.shapes import Shapes
from simulator.specs import ClusterSpec, ModelSpec, Workload, check_shardable
from simulator.units import GIB


@dataclass(frozen=True, kw_only=True)
class Case:
    """Input of a prediction, except the plan. ``notes`` are remarks for the user.

    Raise InputError if the model does not shard over ``cluster.tp`` ranks.
    """

    model: ModelSpec
    workload: Workload
    cluster: ClusterSpec
    profile: Profile
    changes: Changes = NO_CHANGES
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_shardable(self.model, self.workload, self.cluster)

    @cached_property
    def cost(self) -> CostModel:
        """Cost model of the changed machine; cached, so that each look-up is made once."""
        return CostModel(self.profile, changes=self.changes, cuda_graph=self.cluster.cuda_graph)

    @property
    def capacity_bytes(self) -> int:
        """Memory of one GPU, in bytes."""
        return round(self.profile.machine.gpu_memory_gib * GIB)

    @property
    def tokens(self) -> int:
        """Tokens of one iteration, over all data-parallel replicas."""
        return self.workload.tokens * self.workload.grad_accumulation * self.cluster.dp

    def shapes(self, plan: SlicePlan) -> Shapes:
        """Return one rank's shapes under ``plan``.

        Raise InfeasiblePlanError if the plan does not fit the model or the batch.
        """
        check_plan_fits(plan, self.model, self.workload)
        return Shapes(model=self.model, workload=self.workload, cluster=self.cluster, plan=plan)

    def check_memory(self, plan: SlicePlan, peak_bytes: int) -> None:
        """Raise InfeasiblePlanError if ``peak_bytes`` exceeds the memory of a GPU."""
        if peak_bytes > self.capacity_bytes:
            raise InfeasiblePlanError(
                f"{plan.label} needs {peak_bytes / GIB:.1f} GiB at its peak, but "
                f"{self.profile.machine.gpu} has {self.capacity_bytes / GIB:.0f} GiB; lower "
                "--micro-batch-size or --seq-length, or raise --tp.",
                reason="memory",
            )
