"""Benchmarks: what the simulator must show, as tables. One dict, one file a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from domino_tune.base.tables import Table

Bench = Callable[[], list[Table]]


def _lazy(name: str) -> Bench:
    """The function ``name`` of the module ``name``, imported when it is run."""

    def run() -> list[Table]:
        bench: Bench = getattr(import_module(f"benchmarks.bench.{name}"), name)
        return bench()

    return run


BENCHES: Final[dict[str, Bench]] = {
    name: _lazy(name)
    for name in (
        "accuracy", "contention", "slices", "published", "upstream", "paper", "speed", "greedy",
        "search", "properties", "h200", "runtime", "tune_measure",
    )
}  # fmt: skip
"""Name -> benchmark, in the order in which all of them run."""
