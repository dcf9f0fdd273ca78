"""Silent lanes, by device: their collectives do nothing, for a rank that only computes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from domino_tune.runtime.lanes.call import Call, pretend
from domino_tune.runtime.lanes.lane import Handle, Lane, ThreadHandle
from domino_tune.runtime.lanes.streams import SilentStreamLane
from simulator.schedule import DP, TP

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
