"""Equivalent faults: no test can notice them, because the program does the same with them."""

from __future__ import annotations

from typing import Final

EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    (
        "simulator/engine.py", "self.target = 0", "self.target = 1",
    ): "a lane's target is read only where somebody waits, who set it",
    (
        "simulator/engine.py", "self.target = 0", "self.target = -1",
    ): "a lane's target is read only where somebody waits, who set it",
    (
        "simulator/errors.py",
        'hint = f" Did you mean {near[0]!r}?" if near else ""',
        'hint = f" Did you mean {near[ -1]!r}?" if near else ""',
    ): "at most one near name is asked for",
    (
        "simulator/build.py",
        "first = -((high + (ends.before is not None)) // stride)",
        "first = -((high + (ends.before is not None)) * stride)",
    ): "repetitions before the first one with a layer inside the stack have no tokens",
    (
        "simulator/specs.py",
        "if self.world_size > self.ranks_per_node:",
        "if self.world_size >= self.ranks_per_node:",
    ): "ranks that fill one node divide it, and so does tp",
    (
        "simulator/specs.py", "if ranks > 1 and size <= node:", "if ranks > 1 and size < node:",
    ): "a group of a node's size fills it either way",
}  # fmt: skip
"""The reason, by file, line without the fault and line with it (as `Fault.change` gives them)."""
