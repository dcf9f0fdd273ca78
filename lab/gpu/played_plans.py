"""The plans whose power and clock are sampled, and which of them no law is fitted to."""

from __future__ import annotations

from typing import Final, NamedTuple

from simulator.plan import MEGATRON, NO_COMM, SlicePlan
from simulator.specs import Workload

LAYERS: Final = 2
TP: Final = 8
TWO_SLICES: Final = SlicePlan(row_slices=2, order="intra", wgrad="eager")


class PlayedPlan(NamedTuple):
    """A preset's layers under a plan. ``withheld``: no law is fitted to it."""

    preset: str
    seq_length: int
    micro_batch_size: int
    plan: SlicePlan
    withheld: bool = False

    @property
    def name(self) -> str:
        """Preset and plan."""
        return f"{self.preset} {self.plan.label}"

    @property
    def communicates(self) -> bool:
        """Whether its steps have collectives."""
        return self.plan.strategy != NO_COMM.strategy

    @property
    def workload(self) -> Workload:
        """One micro-batch a step."""
        return Workload(
            seq_length=self.seq_length, micro_batch_size=self.micro_batch_size, dtype="bf16"
        )


PLANS: Final = (
    PlayedPlan("gpt3-13b", 2048, 8, MEGATRON),
    PlayedPlan("gpt3-13b", 2048, 8, TWO_SLICES),
    PlayedPlan("gpt3-13b", 2048, 8, NO_COMM),
    PlayedPlan("llama2-13b", 4096, 4, MEGATRON, withheld=True),
    PlayedPlan("llama2-13b", 4096, 4, TWO_SLICES, withheld=True),
)
