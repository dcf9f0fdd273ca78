"""Result of whatif: a plan unchanged, and at each point of a change or sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from domino_tune.base.tables import Table
from domino_tune.results import to_json
from domino_tune.results.shown import Shown, frame, ms, share
from domino_tune.results.simulate import Simulated, SimulateResult, workload_line
from simulator.usable import percent

if TYPE_CHECKING:
    from pandas import DataFrame

POINT_FIELDS: Final = (
    "iteration_ms", "baseline_ms", "no_comm_ms", "speedup", "baseline_no_sp_ms", "speedup_no_sp",
    "comm_ms", "exposed_comm_ms", "hidden_comm_fraction", "peak_memory_gib", "memory_gib",
    "fits", "fits_chance", "usable_memory", "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu",
    "clock_mhz", "power_w", "joules_per_token", "interval_ms", "confidence", "warnings",
    "variants", "plan", "workload", "cluster",
)  # fmt: skip
"""The fields of a simulation that change from point to point of a what-if."""
_PARTS: Final = (
    "memory_gib", "usable_memory", "interval_ms", "warnings", "variants", "plan", "workload",
    "cluster",
)  # fmt: skip
FRAME_FIELDS: Final = tuple(name for name in POINT_FIELDS if name not in _PARTS)
"""Those that are one number or word."""


@dataclass(frozen=True, kw_only=True)
class WhatIfPoint:
    """One changed machine or workload: its prediction, or ``error``, which says why it has none.

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
class WhatIfResult(Shown):
    """The plan unchanged (``base``), and at each point of the change or sweep.

    ``stopped_by``: why a job's sweep ended before the last point, ``user`` or ``time``; the best
    plan of its last point is then the best so far. None if it has all points.
    """

    base: WhatIfPoint
    points: tuple[WhatIfPoint, ...]
    sweep: str | None
    retuned: bool
    notes: tuple[str, ...]
    stopped_by: str | None = None

    def tables(self) -> Sequence[Table]:
        """Return one table: one row per point, the unchanged case first."""
        base = self.base.result
        assert base is not None
        table = Table(
            title=workload_line(base.model, base.workload, base.cluster, base.profile.name),
            columns=(
                "change", "plan", ">iteration", ">unchanged / this", ">baseline", ">bound",
                ">speedup", ">exposed", ">memory", ">fits", ">tokens/s/GPU", ">MFU", ">clock",
                ">J/token", "confidence",
            ),
            rows=[_point_row(point, base) for point in (self.base, *self.points)],
            notes=[_replay_line(self)],
            narrow=(
                "J/token", "clock", "exposed", "confidence", "tokens/s/GPU", "bound", "memory",
                "fits", "baseline", "unchanged / this", "plan",
            ),
            below="plan",
        )  # fmt: skip
        return (table,)

    def alerts(self) -> Sequence[str]:
        """Return each warning once, after the names of its points, and each point's error."""
        about: dict[str, list[str]] = {}
        for point in (self.base, *self.points):
            for text in point.result.warnings if point.result else ():
                about.setdefault(text, []).append(_point_name(point))
        return [
            *(f"{'; '.join(names)}: {text}" for text, names in about.items()),
            *(f"{self.sweep}={one.value}: {one.error}" for one in self.points if one.error),
        ]

    def to_frame(self) -> DataFrame:
        """Return one row per point, the unchanged case first, with a column of texts for each
        change.

        If a point cannot be predicted, ``error`` says why and its numbers are missing.
        """
        return whatif_frame(to_json(self))


def whatif_frame(result: Mapping[str, Any]) -> DataFrame:
    """Return the frame of a WhatIfResult from its JSON; changes are the first columns."""
    points = (result["base"], *result["points"])
    keys = list(dict.fromkeys(key for point in points for key in point["changes"]))
    rows = []
    for point in points:
        row = {**dict.fromkeys(keys, ""), **point["changes"], "error": point["error"] or ""}
        row |= {name: point[name] for name in FRAME_FIELDS if name in point}
        if "plan" in point:
            row["plan"] = point["plan"]["label"]
        rows.append(row)
    return frame(rows, [*keys, "plan", *FRAME_FIELDS, "error"])


def _replay_line(result: WhatIfResult) -> str:
    if result.retuned:
        return "Each row is the best plan of its point."
    return "Every row replays the same plan and order; --retune finds the best plan of each point."


def _point_row(point: WhatIfPoint, base: Simulated) -> tuple[str, ...]:
    name, found = _point_name(point), point.result
    if found is None:
        return (name, "not possible", *[""] * 13)
    return (
        name, found.plan.label, ms(found.iteration_ms),
        f"{base.iteration_ms / found.iteration_ms:.3f}x", ms(found.baseline_ms),
        ms(found.no_comm_ms), f"{found.speedup:.3f}x", ms(found.exposed_comm_ms),
        f"{found.peak_memory_gib:.1f} GiB", percent(found.fits_chance),
        f"{found.tokens_per_second_per_gpu:,.0f}", share(found.mfu), *_power(found),
        found.confidence,
    )  # fmt: skip


def _power(found: Simulated) -> tuple[str, str]:
    if found.clock_mhz is None or found.joules_per_token is None:
        return "–", "–"
    return f"{found.clock_mhz:,} MHz", f"{found.joules_per_token:.3g}"


def _point_name(point: WhatIfPoint) -> str:
    return ", ".join(f"{key}={value}" for key, value in point.changes.items()) or "unchanged"
