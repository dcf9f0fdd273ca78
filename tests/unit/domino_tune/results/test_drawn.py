"""A layer as text: as wide as asked, a digit a slice, and its time."""

from __future__ import annotations

from typing import Any

import pytest

from domino_tune import simulate
from simulator.errors import InputError

JOB: dict[str, Any] = {
    "model": "gpt3-13b", "profile": "h100-dgx", "tp": 8, "seq_length": 1024, "micro_batch_size": 16,
}  # fmt: skip


def test_one_slice_waits_where_two_do_not() -> None:
    found = simulate(**JOB, overrides=("num_hidden_layers=3",), strategy="megatron")
    compute, network, took = found.drawn(40).splitlines()
    assert compute.startswith("compute ")
    assert network.startswith("network ")
    pairs = list(zip(compute[8:], network[8:], strict=True))
    assert len(pairs) == 40
    assert {one for pair in pairs for one in pair} == {"·", "0"}
    assert sum("·" in pair for pair in pairs) > 35  # a cell where one ends has both
    assert took.endswith(" ms")
    cut = simulate(**JOB, overrides=("num_hidden_layers=3",), row_slices=2).drawn(40)
    assert set(cut.splitlines()[0][8:]) <= {"·", "0", "1"}
    assert "1" in cut
    assert cut.count("·") < found.drawn(40).count("·")


def test_one_layer_has_no_next_one() -> None:
    found = simulate(**JOB, overrides=("num_hidden_layers=1",))
    with pytest.raises(InputError, match="two layers or more"):
        found.drawn()
