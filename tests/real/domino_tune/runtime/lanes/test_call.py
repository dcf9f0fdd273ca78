"""Collectives of one tensor, as NCCL gets them, are those that gloo's ranks exchange."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.distributed as dist

from domino_tune.runtime.lanes.call import all_gather, into_one, perform, reduce_scatter
from tests.real.domino_tune.runtime.huggingface.ranks import on_ranks


def both_ways(rank: int, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what a rank has of slices of a sequence-parallel plan, by parts and in one call."""
    found = []
    for tokens in (4, 6):  # slices of different heights
        part = torch.arange(tokens * 3.0).view(tokens, 3) + 100 * rank
        for make, source in ((all_gather, part), (reduce_scatter, part.repeat(ranks, 1) ** 2)):
            targets = []
            for work in (perform, into_one):
                call = make(source.clone(), ranks)
                work(call, dist.group.WORLD)  # type: ignore[arg-type]
                targets.append(call.target)
            found.append((targets[0], targets[1]))
    return found


def test_one_tensor_has_the_layout_of_its_parts(tmp_path: Path) -> None:
    for found in on_ranks(tmp_path, 2, both_ways, 2):
        assert len(found) == 4
        for parts, at_once in found:
            assert torch.equal(parts, at_once)
