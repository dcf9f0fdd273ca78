"""Benchmarks of the simulator, one module each. May import everything, also tests."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from domino_tune.base.tables import Table

Bench = Callable[[], list[Table]]


def _lazy(name: str) -> Bench:
    """Return the function of the module of that name. A call imports the module first."""
    module = name.replace("-", "_")

    def run() -> list[Table]:
        bench: Bench = getattr(import_module(f"lab.bench.{module}"), module)
        return bench()

    return run


BENCHES: Final[dict[str, Bench]] = {
    name: _lazy(name)
    for name in (
        "baselines", "power", "admission", "sequence-slices", "accuracy", "contention",
        "slices", "published", "vtrain", "rivals", "calibrate", "layouts", "host", "shares",
        "upstream", "paper", "speed", "greedy", "search", "properties", "h200", "gpu-records",
        "agreement", "constants", "runtime", "applied", "tune_measure",
    )
}  # fmt: skip
"""Benchmarks by name, in the order in which all of them run."""
