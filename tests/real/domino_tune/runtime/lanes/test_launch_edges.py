"""Which nodes of a captured collective an op after it can wait for."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from domino_tune.runtime.lanes.launch_edges import with_a_start


@pytest.mark.parametrize(
    ("last", "known", "found"),
    [
        ({1: True}, set(), [1]),
        ({1: True, 2: False}, set(), [1]),  # a kernel, and a copy beside it
        ({1: False, 2: True}, {1}, [2]),
        ({1: False}, {1}, []),  # a collective of one rank, in place: nothing to do
        ({}, {1}, []),
    ],
)
def test_kernels_of_a_collective_have_a_start(
    last: dict[int, bool], known: set[int], found: list[int]
) -> None:
    assert with_a_start(last, known) == found


@pytest.mark.parametrize("known", [{7}, set()])
def test_copies_have_none_and_that_is_told(known: set[int]) -> None:
    with pytest.raises(RuntimeError, match=r"ends in copies.*launched one by one"):
        with_a_start({1: False, 2: False, 7: True} if known else {1: False}, known)
