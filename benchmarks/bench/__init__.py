"""Benchmarks of the simulator, one module each. May import everything, also tests."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from domino_tune.base.tables import Table

Bench = Callable[[], list[Table]]


def _lazy(name: str) -> Bench:
    """Return the function ``name`` of the module ``name``. A call imports the module first."""

    def run() -> list[Table]:
        bench: Bench = getattr(import_module(f"benchmarks.bench.{name}"), name)
        return bench()

    return run


BENCHES: Final[dict[str, Bench]] = {
    name: _lazy(name)
    for name in (
        "baselines", "accuracy", "contention", "slices", "published", "shares", "upstream", "paper",
        "speed", "greedy", "search", "properties", "h200", "agreement", "constants", "runtime",
        "tune_measure",
    )
}  # fmt: skip
"""Benchmarks by name, in the order in which all of them run."""
