"""The lanes of a rank that is alone, on which every collective takes what it is said to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from domino_tune.runtime.lanes.emulated import emulated_lane
from domino_tune.runtime.lanes.lane import Lane
from domino_tune.runtime.lanes.pace import Pace
from domino_tune.runtime.lanes.paces import PaceRow
from domino_tune.runtime.priority import for_new_threads
from simulator.schedule import LANES


class EmulatedLanes:
    """Lanes of a lone rank, by the CTAs that a plan asks for; made when first asked for."""

    def __init__(self, rows: Sequence[Sequence[int]], device: torch.device) -> None:
        self._rows = [PaceRow(*row) for row in rows]
        self._device = device
        self._made: dict[int, Mapping[int, Lane]] = {}

    def of(self, comm_ctas: int) -> Mapping[int, Lane]:
        """Every comm lane number with its lane."""
        if comm_ctas not in self._made:
            numbers = range(1, len(LANES))
            self._made[comm_ctas] = {number: self._lane(number, comm_ctas) for number in numbers}
        return self._made[comm_ctas]

    def close(self) -> None:
        """Close what was made; nothing may be in flight."""
        for lanes in self._made.values():
            for lane in lanes.values():
                lane.close()

    def _lane(self, number: int, comm_ctas: int) -> Lane:
        paces = {
            row.size_bytes: Pace(row.duration_ns, row.ctas)
            for row in self._rows
            if (row.lane, row.asked) == (number, comm_ctas)
        }
        with for_new_threads():
            return emulated_lane(paces.__getitem__, self._device, f"emulated-{LANES[number]}")
