"""Benches whose modules import torch: here they only exist."""

from __future__ import annotations

import pytest

from lab.bench.__main__ import BENCHES, find


@pytest.mark.usefixtures("needs_torch")
def test_every_listed_bench_exists() -> None:
    assert all(find(part) for one in BENCHES.values() for part in one["parts"])
