"""The lanes of a single rank: every collective is emulated with the duration of its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from domino_tune.runtime.lanes.emulated import emulated_lane
from domino_tune.runtime.lanes.lane import Lane
from domino_tune.runtime.lanes.pace import Pace
from domino_tune.runtime.lanes.pace_rows import PaceRow, reshapes
from domino_tune.runtime.priority import for_new_threads
from simulator.schedule import DP, LANES, TP


class EmulatedLanes:
    """Lanes of a single rank, by the CTA count of a plan; made at the first call with a count."""

    def __init__(self, rows: Sequence[Sequence[Any]], device: torch.device) -> None:
        self._rows = [PaceRow(*row) for row in rows]
        self._device = device
        self._made: dict[int, Mapping[int, Lane]] = {}

    def of(self, comm_ctas: int) -> Mapping[int, Lane]:
        """Return every comm lane number with its lane, for plans of ``comm_ctas`` CTAs."""
        if comm_ctas not in self._made:
            numbers = (TP, DP)
            self._made[comm_ctas] = {number: self._lane(number, comm_ctas) for number in numbers}
        return self._made[comm_ctas]

    def close(self) -> None:
        """Close all lanes; no collective may be in flight."""
        for lanes in self._made.values():
            for lane in lanes.values():
                lane.close()

    def _lane(self, number: int, comm_ctas: int) -> Lane:
        paces = {
            (row.reshapes, row.size_bytes): Pace(row.duration_ns, row.ctas)
            for row in self._rows
            if (row.lane, row.plan_ctas) == (number, comm_ctas)
        }
        with for_new_threads():
            return emulated_lane(
                lambda call: paces[reshapes(call), call.size_bytes],
                self._device,
                f"emulated-{LANES[number]}",
            )
