"""A machine's speed drifts: how fast it computes now beside when it was profiled."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Final

from domino_tune.runtime.measured import Measured
from simulator.cost import CostModel
from simulator.estimate import Estimate
from simulator.ops import Collective, Signature
from simulator.profile import Profile
from simulator.schedule import COMPUTE

LEAST_NS: Final = 10_000
"""Shorter ops tell little of speed: the clock's own steps and the interpreter's are in them."""


class PresentCost(CostModel):
    """A profile's costs on its machine at ``speed`` times the speed that it was profiled at.

    Compute, and what the host charges to it, takes 1 / speed as long; communication as it was.
    """

    def __init__(self, profile: Profile, *, speed: float, cuda_graph: bool = False) -> None:
        super().__init__(profile, cuda_graph=cuda_graph)
        self.speed = speed
        if self.launch.mode == "inline":
            costs = {kind: round(cost / speed) for kind, cost in self.launch.cost_ns.items()}
            self.launch = replace(self.launch, cost_ns=costs)

    def _estimate(self, signature: Signature) -> Estimate:
        base = super()._estimate(signature)
        if isinstance(signature, Collective):
            return base
        return base._replace(duration_us=base.duration_us / self.speed)


def present_speed(cost: CostModel, bound: Measured) -> float | None:
    """Machine's speed now over profiled: median over the bound's compute ops of profiled duration
    alone over measured duration. None where the bound was not measured to its end."""
    if bound.timeline is None or bound.typical_ns is None:
        return None
    pairs = [
        (cost.duration_ns(op.signature), measured_ns)
        for op, measured_ns in zip(bound.timeline.ops, bound.typical_ns, strict=True)
        if op.lane == COMPUTE and measured_ns > 0
    ]
    long = [pair for pair in pairs if pair[1] >= LEAST_NS] or pairs
    return statistics.median(profiled / measured for profiled, measured in long)
