"""Result of whatif: a plan as things are, and at each point of a change or sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from domino_tune.results.json_form import to_json
from domino_tune.results.simulate import SimulateResult

POINT_FIELDS: Final = (
    "iteration_ms", "baseline_ms", "no_comm_ms", "speedup", "comm_ms", "exposed_comm_ms",
    "hidden_comm_fraction", "peak_memory_gib", "interval_ms", "confidence", "warnings", "plan",
    "workload", "cluster",
)  # fmt: skip
"""The fields of a simulation that change from point to point of a what-if."""


@dataclass(frozen=True, kw_only=True)
class WhatIfPoint:
    """One changed machine or workload: its prediction, or ``error``, why there is none.

    ``changes`` maps a key to the value asked for; ``value`` is that of the swept key.
    """

    changes: dict[str, str]
    value: str
    result: SimulateResult | None
    error: str = ""

    def to_json(self) -> Any:
        """Return the fields of ``simulate --json`` that change from point to point."""
        head = {"changes": self.changes, "error": self.error or None}
        if self.result is None:
            return head
        return {**head, **{name: to_json(getattr(self.result, name)) for name in POINT_FIELDS}}


@dataclass(frozen=True, kw_only=True)
class WhatIfResult:
    """The plan as things are (``base``), and at each point of the change or sweep."""

    base: WhatIfPoint
    points: tuple[WhatIfPoint, ...]
    sweep: str | None
    retuned: bool
    notes: tuple[str, ...]
