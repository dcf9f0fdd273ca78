"""Spans of ops from those of their steps: an op is one step, or two."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.program import REST, Step


def spans_of_ops(
    steps: Sequence[Step], spans: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the starts and the ends of ops, in ns, from the spans of steps. A wait for later ranks
    is the beginning of the op after it, a REST the end of the op before it."""
    starts: list[int] = []
    ends: list[int] = []
    for index, (step, (start, end)) in enumerate(zip(steps, spans, strict=True)):
        if step.part == REST:
            ends[-1] = end
        elif step.family:
            waited = index > 0 and not steps[index - 1].family
            starts.append(spans[index - 1][0] if waited else start)
            ends.append(end)
    return tuple(starts), tuple(ends)
