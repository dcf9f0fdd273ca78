"""Rotary embedding: by how much each pair of a head's elements turns from position to position."""

from __future__ import annotations

import math

import torch

from simulator.specs import ModelSpec


def rotary_speeds(model: ModelSpec) -> torch.Tensor:
    """Return radians a position, fp64, [head_dim / 2].

    With ``rope_scaling_factor``, as in Llama 3.1 (arXiv 2407.21783; Megatron-LM's
    ``--use-rope-scaling``): pairs that turn less than ``rope_low_freq_factor`` times in the
    original length turn that much slower, those above ``rope_high_freq_factor`` times as before,
    and those between by a mean of both.
    """
    half = torch.arange(0, model.head_dim, 2, dtype=torch.float64)
    speeds = model.rope_theta ** (-half / model.head_dim)
    if model.rope_scaling_factor <= 1:
        return speeds
    turns = model.original_max_position_embeddings * speeds / (2 * math.pi)
    low, high = model.rope_low_freq_factor, model.rope_high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return speeds * (kept + (1 - kept) / model.rope_scaling_factor)
