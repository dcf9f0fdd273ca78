"""The greedy planner's list scheduling over arrays; ``simulator.greedy`` has its rules.

Nodes are numbered layer × fragments + fragment. Those whose parents are issued are in one of four
lists, each a row of ``lists`` with its length in ``s``; a choice is a minimum with the node as
tie-break, so the order in a list does not matter.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.kernels import kernel
from simulator.kernels.lives import (
    O_LANE,
    O_READS,
    O_READS_END,
    O_WRITES,
    O_WRITES_END,
    R_LAYER,
    R_VALUE,
)

Array = Any

# Columns of a layer's fragments, of their children, and of the issued nodes.
COMPUTE, COMM, WGRAD, URGENT, SLICE, SHIFT, LIKE, PARENTS, PARENTS_END, CHILDREN, CHILDREN_END = (
    range(11)
)
COLUMNS: Final = 11
AHEAD, CHILD, REDUCED = range(3)
LINK: Final = 3
GROUP, LAYER, INDEX = range(3)

# Entries of ``s``.
NOW, COMM_FREE, IN_GROUP, UNISSUED, LAST, HOLDS, REDUCES, DEPTH = range(8)
UPCOMING, WAITING, READY, WGRADS = range(4)
COUNT: Final = 8
S_SIZE: Final = COUNT + 4
NONE: Final = -1


@kernel("i2 i2 i1 i1 i2 i2 i2 i2 i1 i", entry=True)
def link(
    ops: Array, refs: Array, owners: Array, durations: Array, writers: Array, links: Array,
    graph: Array, children: Array, backs: Array, sign: int,
) -> int:  # fmt: skip
    """Put the durations of a layer's fragments and their dependencies into ``graph``, ``children``
    and ``backs``; return the number of these. ``owners``: each op's fragment, in rising order;
    ``writers``: of each value the fragment, the layer, and whether a collective; NONE at first.
    ``links``: scratch. ``sign``: 1 where later layers have larger numbers, else −1."""
    for op in range(ops.shape[0]):
        collective = ops[op, O_LANE] != 0
        graph[owners[op], COMM if collective else COMPUTE] += durations[op]
        for ref in range(ops[op, O_WRITES], ops[op, O_WRITES_END]):
            value = refs[ref, R_VALUE]
            writers[value, 0], writers[value, 1] = owners[op], refs[ref, R_LAYER]
            writers[value, 2] = collective
    count = begin = op = 0
    for owner in range(graph.shape[0]):
        begin = count
        while op < ops.shape[0] and owners[op] == owner:
            for ref in range(ops[op, O_READS], ops[op, O_READS_END]):
                writer = writers[refs[ref, R_VALUE], 0]
                back = (writers[refs[ref, R_VALUE], 1] - refs[ref, R_LAYER]) * sign
                if writer == NONE or (writer == owner and back == 0):
                    continue
                at = begin
                while at < count and (links[at, 0] != writer or links[at, 1] != back):
                    at += 1
                links[at, 0], links[at, 1], links[at, 2] = writer, back, owner
                links[at, 3] = writers[refs[ref, R_VALUE], 2]
                count = max(count, at + 1)
            op += 1
        graph[owner, PARENTS], graph[owner, PARENTS_END] = begin, count
    for at in range(count):
        backs[at] = links[at, 1]
        graph[links[at, 0], CHILDREN_END] += 1
    begin = 0
    for owner in range(graph.shape[0]):
        begin += graph[owner, CHILDREN_END]
        graph[owner, CHILDREN] = graph[owner, CHILDREN_END] = begin - graph[owner, CHILDREN_END]
    for at in range(count):
        place = graph[links[at, 0], CHILDREN_END]
        graph[links[at, 0], CHILDREN_END] += 1
        children[place, AHEAD], children[place, CHILD] = links[at, 1], links[at, 2]
        children[place, REDUCED] = links[at, 3]
    return count


@kernel("i2 i2 i1 i i1 i2", entry=True)
def find_paths(
    graph: Array, children: Array, backs: Array, depth: int, paths: Array, scratch: Array
) -> int:
    """Put each node's longest remaining path (ns), with collectives and without wgrads, into
    ``paths``; every slice counts with the durations of the slowest one (``LIKE``: the first
    fragment that differs in its slice alone)."""
    count = graph.shape[0]
    for index in range(count):
        scratch[0, index] = scratch[1, index] = scratch[2, index] = 0
    for index in range(count):
        like = graph[index, LIKE]
        scratch[0, like] = max(scratch[0, like], graph[index, COMPUTE])
        scratch[1, like] = max(scratch[1, like], graph[index, COMM])
        for parent in range(graph[index, PARENTS], graph[index, PARENTS_END]):
            scratch[2, index] += backs[parent] == 0
    ordered = 0
    for index in range(count):
        if scratch[2, index] == 0:
            scratch[3, ordered] = index
            ordered += 1
    at = 0
    while at < ordered:  # parents first
        index = scratch[3, at]
        at += 1
        for child in range(graph[index, CHILDREN], graph[index, CHILDREN_END]):
            if children[child, AHEAD] == 0:
                scratch[2, children[child, CHILD]] -= 1
                if scratch[2, children[child, CHILD]] == 0:
                    scratch[3, ordered] = children[child, CHILD]
                    ordered += 1
    for layer in range(depth - 1, -1, -1):
        for at in range(ordered - 1, -1, -1):
            index = scratch[3, at]
            longest = 0
            if graph[index, WGRAD]:
                continue
            for child in range(graph[index, CHILDREN], graph[index, CHILDREN_END]):
                target = children[child, CHILD]
                if layer + children[child, AHEAD] < depth and not graph[target, WGRAD]:
                    tail = paths[(layer + children[child, AHEAD]) * count + target]
                    if children[child, REDUCED]:
                        tail += scratch[1, graph[index, LIKE]]
                    longest = max(longest, tail)
            paths[layer * count + index] = longest + scratch[0, graph[index, LIKE]]
    return ordered


@kernel("i2 i")
def group_of(graph: Array, node: int) -> int:
    """Return the group of a node."""
    return int(node // graph.shape[0] + graph[node % graph.shape[0], SHIFT])


@kernel("i1 i2 i i")
def put(s: Array, lists: Array, which: int, node: int) -> int:
    """Put a node into a list."""
    lists[which, s[COUNT + which]] = node
    s[COUNT + which] += 1
    return 0


@kernel("i1 i2 i i")
def take(s: Array, lists: Array, which: int, node: int) -> int:
    """Take a node out of a list; return it."""
    for at in range(s[COUNT + which]):
        if lists[which, at] == node:
            s[COUNT + which] -= 1
            lists[which, at] = lists[which, s[COUNT + which]]
            return node
    return NONE


@kernel("i2 i1 i2 i")
def parents_issued(graph: Array, s: Array, lists: Array, node: int) -> int:
    """Put a node where it waits for its time."""
    if graph[node % graph.shape[0], WGRAD]:
        return put(s, lists, WGRADS, node)
    later = group_of(graph, node) > s[IN_GROUP]
    return put(s, lists, UPCOMING if later else WAITING, node)


@kernel("i2 i1 i2")
def next_group(graph: Array, s: Array, lists: Array) -> int:
    """Begin the next group that has something to issue."""
    while True:
        s[IN_GROUP] += 1
        s[UNISSUED] = 0
        for index in range(graph.shape[0]):
            layer = s[IN_GROUP] - graph[index, SHIFT]
            s[UNISSUED] += 0 <= layer < s[DEPTH] and graph[index, WGRAD] == 0
        at = 0
        while at < s[COUNT + UPCOMING]:
            node = lists[UPCOMING, at]
            if group_of(graph, node) == s[IN_GROUP]:
                take(s, lists, UPCOMING, node)
                put(s, lists, WAITING, node)
            else:
                at += 1
        if s[UNISSUED] != 0 or s[IN_GROUP] > s[DEPTH]:
            return 0


@kernel("i2 i1 i2 i1 i i")
def longest_ready(
    graph: Array, s: Array, lists: Array, paths: Array, column: int, value: int
) -> int:
    """Return the ready node with the longest path, of those whose ``column`` is ``value`` (column
    −1: of all), or NONE."""
    best, count = NONE, graph.shape[0]
    for at in range(s[COUNT + READY]):
        node = lists[READY, at]
        if column >= 0 and graph[node % count, column] != value:
            continue
        longer = best == NONE or paths[node] > paths[best]
        if longer or (paths[node] == paths[best] and node < best):
            best = node
    return best


@kernel("i2 i1 i2 i1")
def filler(graph: Array, s: Array, lists: Array, ready_at: Array) -> int:
    """Take a ready wgrad of the newest layer, or NONE."""
    best, count = NONE, graph.shape[0]
    for at in range(s[COUNT + WGRADS]):
        node = lists[WGRADS, at]
        if ready_at[node] <= s[NOW]:
            newer = best == NONE or node // count > best // count
            if newer or (node // count == best // count and node < best):
                best = node
    return NONE if best == NONE else take(s, lists, WGRADS, best)


@kernel("i2 i1 i2 i1 i")
def earlier_wgrad(graph: Array, s: Array, lists: Array, ready_at: Array, chosen: int) -> int:
    """Take a wgrad that must be issued before the layer of ``chosen`` begins, or one that passes
    the time while the collective of ``chosen`` could not start; or NONE."""
    if chosen == NONE or s[COUNT + WGRADS] == 0:
        return NONE
    count = graph.shape[0]
    compute, comm = graph[chosen % count, COMPUTE], graph[chosen % count, COMM]
    oldest = lists[WGRADS, 0]
    for at in range(1, s[COUNT + WGRADS]):
        oldest = min(oldest, lists[WGRADS, at])
    late = oldest // count < group_of(graph, chosen) - 1
    if compute != 0 and (late or s[REDUCES] == 0):  # without ops it begins no layer
        return take(s, lists, WGRADS, oldest)
    if s[HOLDS] != 0 and comm != 0 and s[COMM_FREE] > s[NOW] + compute:
        return filler(graph, s, lists, ready_at)
    return NONE


@kernel("i2 i1 i2 i1 i1")
def pick(graph: Array, s: Array, lists: Array, ready_at: Array, paths: Array) -> int:
    """Take the node to issue next; advance the time until there is one."""
    count, last = graph.shape[0], s[LAST]
    while True:
        at = 0
        while at < s[COUNT + WAITING]:
            node = lists[WAITING, at]
            if ready_at[node] <= s[NOW]:
                take(s, lists, WAITING, node)
                put(s, lists, READY, node)
            else:
                at += 1
        chosen = longest_ready(graph, s, lists, paths, URGENT, 1)
        if chosen == NONE and last != NONE and graph[last % count, WGRAD] == 0:
            chosen = longest_ready(graph, s, lists, paths, SLICE, graph[last % count, SLICE])
        if chosen == NONE:
            chosen = longest_ready(graph, s, lists, paths, NONE, 0)
        earlier = earlier_wgrad(graph, s, lists, ready_at, chosen)
        if earlier != NONE:
            return earlier
        if chosen != NONE:
            return take(s, lists, READY, chosen)
        found = filler(graph, s, lists, ready_at)
        if found != NONE:
            return found
        soonest = NONE
        for which in (WAITING, WGRADS):
            for at in range(s[COUNT + which]):
                if soonest == NONE or ready_at[lists[which, at]] < soonest:
                    soonest = ready_at[lists[which, at]]
        s[NOW] = soonest


@kernel("i2 i2 i1 i1 i2 i1 i1 i")
def issue_node(
    graph: Array, children: Array, s: Array, missing: Array, lists: Array, ready_at: Array,
    paths: Array, node: int,
) -> int:  # fmt: skip
    """Issue a node: play it, and update its children."""
    count = graph.shape[0]
    layer, index = node // count, node % count
    s[NOW] = max(s[NOW], ready_at[node]) + graph[index, COMPUTE]
    reduced_at = s[NOW]
    if graph[index, COMM] != 0:
        s[COMM_FREE] = max(s[COMM_FREE], s[NOW]) + graph[index, COMM]
        reduced_at = s[COMM_FREE]
    for child in range(graph[index, CHILDREN], graph[index, CHILDREN_END]):
        if layer + children[child, AHEAD] < s[DEPTH]:
            target = (layer + children[child, AHEAD]) * count + children[child, CHILD]
            at = reduced_at if children[child, REDUCED] else s[NOW]
            ready_at[target] = max(ready_at[target], at)
            missing[target] -= 1
            if missing[target] == 0:
                parents_issued(graph, s, lists, target)
    if graph[index, WGRAD] == 0:
        s[UNISSUED] -= 1
        if s[UNISSUED] == 0 and s[IN_GROUP] <= s[DEPTH]:
            next_group(graph, s, lists)
    s[LAST] = node
    return 0


@kernel("i2 i2 i1 i1 i1 i1 i1 i2 i2 i", entry=True)
def issue_layers(
    graph: Array, children: Array, backs: Array, s: Array, paths: Array, missing: Array,
    ready_at: Array, lists: Array, issued: Array, last_group: int,
) -> int:  # fmt: skip
    """Put (group in progress, layer, fragment) of the nodes into ``issued``, in issue order, until
    all are issued or ``last_group`` is; return how many. ``s`` holds HOLDS, REDUCES, DEPTH, and is
    zero otherwise."""
    count = graph.shape[0]
    s[IN_GROUP], s[LAST] = -2, NONE
    for layer in range(s[DEPTH]):
        for index in range(count):
            node = layer * count + index
            ready_at[node] = missing[node] = 0
            for parent in range(graph[index, PARENTS], graph[index, PARENTS_END]):
                missing[node] += layer - backs[parent] >= 0
            if missing[node] == 0:
                parents_issued(graph, s, lists, node)
    next_group(graph, s, lists)
    done = 0
    while done < s[DEPTH] * count and s[IN_GROUP] <= last_group:
        node = pick(graph, s, lists, ready_at, paths)
        issued[done, GROUP] = s[IN_GROUP]
        issued[done, LAYER] = node // count
        issued[done, INDEX] = node % count
        done += 1
        issue_node(graph, children, s, missing, lists, ready_at, paths, node)
    return done
