"""A rank's lanes: over its process groups, or silent ones for a rank that only computes.

NCCL takes the CTA count from the communicator, so each count needs its own group. Most runs use
NCCL's own choice only, so the other groups are made when they are first needed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from domino_tune.runtime.lanes.lane import Call, Handle, Lane, ThreadHandle, ThreadLane, pretend
from domino_tune.runtime.lanes.streams import SilentStreamLane, StreamLane
from domino_tune.runtime.launch_spec import Backend, LaunchSpec
from simulator.errors import InputError
from simulator.schedule import DP, LANES, TP

# Silent lanes, by device --------------------------------------------------------------------------
# Their collectives do nothing, for a rank that only computes.

MEETING_BYTES: Final = 64
"""Largest message of a collective that only synchronises ranks."""


class SilentLane:
    """A lane whose collectives are done at once, at one moment of the host's clock."""

    def issue(self, name: str, call: Call) -> ThreadHandle:
        """Return a handle that is done; see ``pretend``."""
        start = end = time.perf_counter_ns()
        if call.target is not call.source:
            pretend(call)
            end = time.perf_counter_ns()
        handle = ThreadHandle(name, span_ns=(start, end))
        handle.done.set()
        return handle

    def close(self) -> None:
        """Do nothing."""


class PausingHandle(ThreadHandle):
    """A collective that takes ``pause_s`` from when it is waited for."""

    pause_s: float = 0.0

    def wait(self) -> None:
        """Sleep, the first time."""
        pause_s, self.pause_s = self.pause_s, 0.0
        time.sleep(pause_s)


class PausingLane(SilentLane):
    """A silent lane on CPU, for whose collectives the rank sleeps ``pause_s``."""

    pause_s: float = 0.0

    def issue(self, name: str, call: Call) -> PausingHandle:
        """Return a handle whose wait takes the pause that is set now."""
        handle = PausingHandle(name, span_ns=super().issue(name, call).span_ns)
        handle.pause_s = self.pause_s
        return handle


@dataclass(frozen=True)
class MeetingLane:
    """A silent lane that still plays collectives of a few bytes: ranks then begin the ops after
    them together, as in training. Adam is bound by the memory bandwidth that ranks share."""

    real: Lane
    silent: Lane

    def issue(self, name: str, call: Call) -> Handle:
        """Run a collective of a few bytes, no other."""
        lane = self.real if call.size_bytes <= MEETING_BYTES else self.silent
        return lane.issue(name, call)

    def close(self) -> None:
        """Do nothing: both lanes belong to others."""


SILENT: Final[Mapping[int, Lane]] = {TP: SilentLane(), DP: SilentLane()}


class SilentLanes:
    """The counterpart of ``GroupLanes`` for a single rank."""

    def __init__(self, device: torch.device) -> None:
        self.default = silent_lanes(device)

    def tp_lane(self, ctas: int) -> Lane:
        """Return the same lane for every CTA count."""
        return self.default[TP]

    def close(self) -> None:
        """Do nothing."""


def silent_lanes(device: torch.device) -> Mapping[int, Lane]:
    """Return lanes whose collectives do nothing, with moments that the device's clock can read."""
    if device.type != "cuda":
        return SILENT
    return {TP: SilentStreamLane(), DP: SilentStreamLane()}


def meeting_lanes(lanes: Mapping[int, Lane], device: torch.device) -> Mapping[int, Lane]:
    """Return silent lanes whose ranks still meet through the real ``lanes``. On CUDA they do not
    meet: GPUs share no memory."""
    silent = silent_lanes(device)
    if device.type == "cuda":
        return silent
    return {number: MeetingLane(lane, silent[number]) for number, lane in lanes.items()}


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
