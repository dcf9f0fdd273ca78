"""The greedy planner in plain Python, where an index beyond its arrays is an error, and on layers
whose fragments are numbered in any order."""

from __future__ import annotations

import numpy as np
import pytest

from simulator import greedy
from simulator.greedy import Graph, find_paths, issue_layers
from simulator.kernels import planner
from tests.unit.simulator.test_greedy_by_hand import graph


@pytest.mark.parametrize("comm_ns", [0, 1, 25])
@pytest.mark.parametrize("holds", [False, True])
def test_plain_and_compiled_agree(
    comm_ns: int, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = graph(comm_ns, holds=holds)
    with monkeypatch.context() as patch:
        patch.setattr(greedy, "call", lambda name, *given: getattr(planner, name)(*given))
        paths = find_paths(layer)
        issued = issue_layers(layer, paths)
    assert find_paths(layer).tolist() == paths.tolist()
    assert issue_layers(layer, paths).tolist() == issued.tolist()


def renumbered(layer: Graph, order: tuple[int, ...]) -> Graph:
    """The same layer with its fragments in another order."""
    number = np.argsort(order)
    rows, children = layer.rows[list(order)], layer.children.copy()
    rows[:, planner.LIKE] = number[rows[:, planner.LIKE]]
    children[:, planner.CHILD] = number[children[:, planner.CHILD]]
    tokens = tuple(layer.tokens[index] for index in order)
    return layer._replace(tokens=tokens, rows=rows, children=children)


@pytest.mark.parametrize("order", [(5, 4, 3, 2, 1, 0), (2, 0, 4, 1, 3, 5)])
def test_a_fragment_may_have_a_smaller_number_than_those_that_it_waits_for(
    order: tuple[int, ...],
) -> None:
    layer = graph(25)
    usual = find_paths(layer).reshape(-1, len(order))
    found = find_paths(renumbered(layer, order)).reshape(-1, len(order))
    assert found.tolist() == usual[:, list(order)].tolist()
