"""Dropout masks that do not depend on how a batch is sliced.

A mask is drawn sequence by sequence from (seed, step, site, global sequence). The site names the
layer and the place in it. Row slices are whole sequences, so every slicing draws the same masks,
and so do all ranks of a tensor-parallel group.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

from domino_tune.runtime.ops.pointwise import has_triton


def keep_mask(
    sequences: Sequence[int], shape: tuple[int, int], rate: float, *,
    seed: int, step: int | torch.Tensor, site: str, device: torch.device,
) -> torch.Tensor:  # fmt: skip
    """Return a bool mask [len(sequences) · tokens, hidden], True with probability 1 − ``rate``.

    ``shape`` is (tokens of a sequence, hidden size); ``sequences`` are consecutive. CPU and CUDA
    draw different masks. ``step`` may be a number on the device (needs Triton), which a captured
    graph reads at every replay.
    """
    if device.type == "cuda" and has_triton():
        from domino_tune.runtime.lanes.kernels import drawn_mask

        key = zlib.crc32(f"{seed}/{site}".encode())
        return drawn_mask(sequences, shape, rate, key=key, step=step, device=device)
    step = int(step)
    mask = torch.empty((len(sequences), *shape), dtype=torch.bool, device=device)
    generator = torch.Generator(device=device)
    for index, sequence in enumerate(sequences):
        generator.manual_seed(zlib.crc32(f"{seed}/{step}/{site}/{sequence}".encode()))
        mask[index].bernoulli_(1 - rate, generator=generator)
    return mask.view(-1, shape[1])
