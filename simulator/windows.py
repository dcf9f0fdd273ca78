"""Windows: the parts of a layer's pass in which collectives run, for bounds of unsliced plans.

Each lane is FIFO, and a collective is issued when all compute before it is done. So a pass is cut
before each op behind which no compute starts until all collectives so far are done: ops on both
sides of a cut never run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.schedule import COMPUTE, OpTemplate, Ref


def windows(ops: Sequence[OpTemplate], *, wgrads_wait: bool) -> list[list[OpTemplate]]:
    """Return the windows of a layer's ``ops``, which are in issue order, on compute and one other
    lane. ``wgrads_wait``: gradients of weights are not a pass of their own.

    Collectives that the layer does not wait for are left out.
    """
    end = len(ops)
    due, ahead = _due(ops, wgrads_wait=wgrads_wait), [end] * (end + 1)
    for place in reversed(range(end)):  # the first compute op from here on
        ahead[place] = place if ops[place].lane == COMPUTE else ahead[place + 1]
    found: list[list[OpTemplate]] = []
    latest, begin = -1, 0
    for place in range(end + 1):
        if latest <= ahead[place]:
            found.append(list(ops[begin:place]))
            begin = place
        latest = max(latest, due.get(place, -1))
    return [window for window in found if any(op.lane != COMPUTE for op in window)]


def _due(ops: Sequence[OpTemplate], *, wgrads_wait: bool) -> dict[int, int]:
    """Return the place of each collective, and that of the first op that waits for it or for one
    behind it; a place behind all ops where none does."""
    due: dict[int, int] = {}
    written: dict[Ref, int] = {}
    for place, op in enumerate(ops):
        if op.lane != COMPUTE:
            due[place] = len(ops) + 1
            written |= dict.fromkeys(op.writes, place)
        elif wgrads_wait or "_wgrad" not in op.role:
            for at in {written[ref] for ref in op.reads if ref in written}:
                due[at] = min(due[at], place)
    least = len(ops) + 1
    for place in reversed(due):
        due[place] = least = min(due[place], least)
    return due
