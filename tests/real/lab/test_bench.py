"""Benches whose modules import torch: here they only exist."""

from __future__ import annotations

import pytest

from lab.bench import BENCHES, find


@pytest.mark.usefixtures("needs_torch")
def test_every_listed_bench_exists() -> None:
    assert all(find(part) for _, *parts in BENCHES.values() for part in parts)
