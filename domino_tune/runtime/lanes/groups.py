"""A rank's lanes over its process groups: one per kind, and tensor-parallel ones by CTA count.

NCCL takes the CTA count from the communicator, so each count needs its own group. Most runs use
NCCL's own choice only, so the other groups are made when they are first needed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from domino_tune.runtime.lanes.lane import Lane, ThreadLane
from domino_tune.runtime.lanes.streams import StreamLane
from domino_tune.runtime.launch_spec import Backend, LaunchSpec
from simulator.errors import InputError
from simulator.schedule import DP, LANES, TP


class GroupLanes:
    """The lanes of ``rank``. Torch requires that every rank takes part in making every group, in
    one order. So all ranks must ask for the same CTA counts in the same order. ``timed``: somebody
    reads when collectives ran."""

    def __init__(self, spec: LaunchSpec, rank: int, *, timed: bool = True) -> None:
        self._spec = spec
        self._timed = timed
        self._rank = rank
        self.default: dict[int, Lane] = {TP: self._open(TP), DP: self._open(DP)}
        self._by_ctas = {0: self.default[TP]}

    def tp_lane(self, ctas: int) -> Lane:
        """Return the tensor-parallel lane whose collectives use ``ctas`` CTAs; 0: NCCL's choice.

        Raise InputError for a count other than 0 on gloo.
        """
        if ctas and self._spec.backend == "gloo":
            raise InputError(
                f"comm_ctas = {ctas} asks for {ctas} NCCL CTAs, and gloo has none; "
                "run with --backend nccl, or with comm_ctas 0."
            )
        if ctas not in self._by_ctas:
            self._by_ctas[ctas] = self._open(TP, ctas)
        return self._by_ctas[ctas]

    def close(self) -> None:
        """Close every lane; no collective may be in flight."""
        for lane in (*self._by_ctas.values(), self.default[DP]):
            lane.close()

    def _open(self, number: int, ctas: int = 0) -> Lane:
        """Return this rank's lane of that number, over the group that it belongs to."""
        spec, mine = self._spec, None
        for ranks in members(spec, number):
            group = dist.new_group(
                ranks,
                backend=spec.backend,
                timeout=group_timeout(spec),
                pg_options=nccl_options(ctas, group_timeout(spec)) if ctas else None,
            )
            if self._rank in ranks:
                mine = group
        assert mine is not None
        return lane_over(mine, number, spec.backend, timed=self._timed)


def lane_over(
    group: dist.ProcessGroup, number: int, backend: Backend, *, timed: bool
) -> Lane:  # fmt: skip
    """Return the lane of that number over a group of ``backend``."""
    if backend == "gloo":
        return ThreadLane(group, LANES[number])
    return StreamLane(group, timed=timed)


def members(spec: LaunchSpec, number: int) -> list[list[int]]:
    """Return the ranks of each group of the lanes with that number."""
    tp, world = spec.tp, spec.world_size
    if number == TP:
        return [list(range(first, first + tp)) for first in range(0, world, tp)]
    return [list(range(first, world, tp)) for first in range(tp)]


def nccl_options(ctas: int, timeout: timedelta) -> Any:
    """Return the options of an NCCL group whose collectives use exactly ``ctas`` CTAs."""
    # A group takes its timeout from the options; torch warns where they differ from the argument.
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    options.config.min_ctas = options.config.max_ctas = ctas
    return options


def group_timeout(spec: LaunchSpec) -> timedelta:
    """Return a timeout longer than the watchdog's, which gives the better message."""
    return timedelta(seconds=spec.hang_timeout_s + 10)
