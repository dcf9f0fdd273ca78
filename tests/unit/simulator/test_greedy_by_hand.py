"""The greedy planner on a layer of two fragments and a weight gradient, played by hand.

``fc2`` of each slice takes 10 ns and is all-reduced; ``residual`` reads the result, takes 4 ns, and
the next layer's ``fc2`` reads it. The weight gradient of a slice takes 6 ns and may come any time
after its ``fc2``. Nodes: 0, 1 fc2; 2, 3 residual; 4, 5 weight gradients, each of slices 0 and 1.
"""

from __future__ import annotations

import numpy as np

from simulator.greedy import LAST, Graph, find_paths, issue_layers, plan_issue_order
from simulator.issue_order import Token

FC2 = (10, 10)
RESIDUAL = (4, 4)


def graph(comm_ns: int, fc2: tuple[int, int] = FC2, *, holds: bool = False) -> Graph:
    """The layer, with all-reduces of ``comm_ns``; ``holds`` where launches are ordered."""
    names = ("fc2", "residual", "fc1_wgrad")
    tokens = tuple(Token("mlp", name, row) for name in names for row in (0, 1))
    compute, comm = (*fc2, *RESIDUAL, 6, 6), (comm_ns, comm_ns, 0, 0, 0, 0)
    backs = (1, 1, 0, 0, 0, 0)
    children = (
        ((0, 2, True), (0, 4, False)), ((0, 3, True), (0, 5, False)), ((1, 0, False),),
        ((1, 1, False),), (), (),
    )  # fmt: skip
    rows, listed = list[tuple[int, ...]](), list[tuple[int, int, bool]]()
    for index, token in enumerate(tokens):
        begin = len(listed)
        listed += children[index]
        is_wgrad, is_last = token.fragment.endswith("_wgrad"), ("mlp", token.fragment) in LAST
        rows.append((
            compute[index], comm[index], is_wgrad, False, token.slice, is_last, index // 2 * 2,
            index, index + 1, begin, len(listed),
        ))  # fmt: skip
    made = [np.array(one, np.int64) for one in (rows, listed, backs)]
    return Graph(tokens, made[0], made[1], made[2], holds)


def played(layer: Graph) -> list[tuple[int, ...]]:
    """(group in progress, layer, fragment) of all nodes, in issue order."""
    return [tuple(node) for node in issue_layers(layer, find_paths(layer)).tolist()]


def test_long_all_reduces_are_waited_for_with_weight_gradients() -> None:
    """All-reduces of 25 ns follow each other without a gap: slice 0 from 10 to 35, slice 1 to 60.

    At 20 both fc2 are issued, and both weight gradients fill until 32. Slice 0 continues at 35,
    into the next layer, and its weight gradient fills from 49 to 55. Slice 1 continues at 60 …
    """
    found = played(graph(25))
    assert found[:16] == [
        (0, 0, 0), (0, 0, 1),
        (1, 0, 4), (1, 0, 5), (1, 0, 2), (1, 1, 0), (1, 1, 4), (1, 0, 3), (1, 1, 1),
        (2, 1, 5), (2, 1, 2), (2, 2, 0), (2, 2, 4), (2, 1, 3), (2, 2, 1),
        (3, 2, 5),
    ]  # fmt: skip
    assert len(found) == 6 * 6
    assert plan_issue_order(graph(25)).to_strings() == [
        "mlp.fc1_wgrad:1-1", "mlp.residual:0-1", "mlp.fc2:0+0", "mlp.fc1_wgrad:0+0",
        "mlp.residual:1-1", "mlp.fc2:1+0",
    ]  # fmt: skip


def test_weight_gradients_that_fill_nothing_come_before_the_layer_after_next() -> None:
    """All-reduces of 1 ns are never waited for. A layer's weight gradients are issued when the
    group of the layer after next begins."""
    found = played(graph(1))
    assert found[:14] == [
        (0, 0, 0), (0, 0, 1),
        (1, 0, 2), (1, 1, 0), (1, 0, 3), (1, 1, 1),
        (2, 0, 4), (2, 0, 5), (2, 1, 2), (2, 2, 0), (2, 1, 3), (2, 2, 1),
        (3, 1, 4), (3, 1, 5),
    ]  # fmt: skip
    assert plan_issue_order(graph(1)).to_strings() == [
        "mlp.fc1_wgrad:0-2", "mlp.fc1_wgrad:1-2", "mlp.residual:0-1", "mlp.fc2:0+0",
        "mlp.residual:1-1", "mlp.fc2:1+0",
    ]  # fmt: skip


def test_a_weight_gradient_goes_before_a_collective_that_could_not_start() -> None:
    """Slice 0's all-reduce lasts from 10 to 35, so that of slice 1 would block the ops after it:
    slice 0's weight gradient goes first, and slice 1's fc2 follows at 16. Its own weight gradient
    fills from 35, beside its all-reduce, until slice 0 continues."""
    found = played(graph(25, holds=True))
    assert found[:3] == [(0, 0, 0), (0, 0, 4), (0, 0, 1)]
    free = played(graph(5, holds=True))
    assert free == played(graph(5))


def test_where_nothing_is_reduced_weight_gradients_come_at_once() -> None:
    """Each after its own fc2; the last one of a layer belongs to the next group."""
    assert plan_issue_order(graph(0)).to_strings() == [
        "mlp.fc1_wgrad:1-1", "mlp.residual:0-1", "mlp.fc2:0+0", "mlp.fc1_wgrad:0+0",
        "mlp.residual:1-1", "mlp.fc2:1+0",
    ]  # fmt: skip


def test_paths_are_what_remains_to_the_last_layer() -> None:
    """A layer is 10 + 25 + 4 ns; the last residual is 4. Weight gradients count nothing, and a
    shorter slice counts as the longest."""
    for fc2 in (FC2, (7, 10), (10, 2)):
        paths = find_paths(graph(25, fc2)).tolist()
        for layer in range(6):
            behind = 39 * (5 - layer)
            fc2_path, residual = 39 + behind, 4 + behind
            assert paths[6 * layer : 6 * layer + 6] == [
                fc2_path, fc2_path, residual, residual, 0, 0,
            ]  # fmt: skip


def test_the_slice_that_is_furthest_behind_goes_first() -> None:
    layer = graph(25)
    assert played(layer)[:2] == [(0, 0, 0), (0, 0, 1)]
    paths = find_paths(layer)
    paths[1] += 1
    assert issue_layers(layer, paths)[:2].tolist() == [[0, 0, 1], [0, 0, 0]]
