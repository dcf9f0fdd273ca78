"""Lanes of a rank that computes alone, by device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from domino_tune.measure.traffic import SILENT
from domino_tune.runtime.lanes import Lane
from domino_tune.runtime.stream_lanes import SilentStreamLane
from simulator.schedule import DP, TP


def silent_lanes(device: torch.device) -> Mapping[int, Lane]:
    """Lanes whose collectives do nothing, with moments that the device's clock can read."""
    if device.type != "cuda":
        return SILENT
    return {TP: SilentStreamLane(), DP: SilentStreamLane()}
