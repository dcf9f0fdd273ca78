"""Dropout masks: the same however a batch is cut, different everywhere else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from domino_tune.runtime.ops.pointwise import keep_mask

SHAPE = (64, 32)


def _mask(sequences: Sequence[int] = (0,), *, step: int = 0, site: str = "l0.attn", seed: int = 1,
          rate: float = 0.3) -> torch.Tensor:  # fmt: skip
    device = torch.device("cpu")
    return keep_mask(sequences, SHAPE, rate, seed=seed, step=step, site=site, device=device)


def test_any_cut_draws_the_same_rows() -> None:
    whole = _mask(range(5))
    cut = torch.cat([_mask(range(2)), _mask(range(2, 3)), _mask(range(3, 5))])
    assert whole.shape == (5 * 64, 32)
    assert torch.equal(whole, cut)


def test_sequences_sites_steps_and_seeds_differ() -> None:
    masks = [_mask(), _mask([1]), _mask(site="l0.mlp"), _mask(step=1), _mask(seed=2)]
    for index, mask in enumerate(masks):
        assert not any(torch.equal(mask, other) for other in masks[:index])


def test_it_keeps_what_the_rate_says() -> None:
    kept = _mask(range(20), rate=0.3).double().mean()
    assert float(kept) == pytest.approx(0.7, abs=0.01)
