"""Lanes of a rank that computes alone, by device: their collectives do nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from domino_tune.runtime.lanes.lane import Handle, Lane, ThreadHandle
from domino_tune.runtime.lanes.streams import SilentStreamLane
from simulator.schedule import DP, TP

MEETING_BYTES: Final = 64
"""Nothing larger than this brings ranks together without traffic."""


class SilentLane:
    """A lane whose collectives are done at once, at a moment of the host's clock."""

    def issue(self, name: str, tensor: torch.Tensor, reduction: str) -> ThreadHandle:
        """Nothing happens."""
        now = time.perf_counter_ns()
        handle = ThreadHandle(name, span_ns=(now, now))
        handle.done.set()
        return handle

    def close(self) -> None:
        """Nothing to give up."""


@dataclass(frozen=True)
class MeetingLane:
    """A silent lane that still does collectives of a few bytes: ranks come to what stands behind
    them together, as in training. Adam is bound by the memory bandwidth that ranks share."""

    real: Lane
    silent: Lane

    def issue(self, name: str, tensor: torch.Tensor, reduction: str) -> Handle:
        """Reduce a number, skip a tensor."""
        lane = self.real if tensor.nbytes <= MEETING_BYTES else self.silent
        return lane.issue(name, tensor, reduction)

    def close(self) -> None:
        """Nothing to give up: the lanes are others'."""


SILENT: Final[Mapping[int, Lane]] = {TP: SilentLane(), DP: SilentLane()}


class SilentLanes:
    """What ``GroupLanes`` is, for a rank that is alone."""

    def __init__(self, device: torch.device) -> None:
        self.default = silent_lanes(device)

    def tp_lane(self, ctas: int) -> Lane:
        """The same lane for every CTA count."""
        return self.default[TP]

    def close(self) -> None:
        """Nothing to give up."""


def silent_lanes(device: torch.device) -> Mapping[int, Lane]:
    """Lanes whose collectives do nothing, with moments that the device's clock can read."""
    if device.type != "cuda":
        return SILENT
    return {TP: SilentStreamLane(), DP: SilentStreamLane()}


def meeting_lanes(lanes: Mapping[int, Lane], device: torch.device) -> Mapping[int, Lane]:
    """Silent lanes beside the real ``lanes``, whose ranks still meet. GPUs share no memory: there
    nothing but silence."""
    silent = silent_lanes(device)
    if device.type == "cuda":
        return silent
    return {number: MeetingLane(lane, silent[number]) for number, lane in lanes.items()}
