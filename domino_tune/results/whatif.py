"""Result of whatif: a plan unchanged, and at each point of a change or sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from domino_tune.base.tables import Table
from domino_tune.results import HIDDEN, to_json
from domino_tune.results.shown import Shown, frame, ms, share, workload_line
from domino_tune.results.simulate import Prediction, SimulateResult
from domino_tune.results.tune import stopped_words
from domino_tune.store.plans import ProfileRef
from simulator.specs import ModelSpec
from simulator.usable import percent

if TYPE_CHECKING:
    from pandas import DataFrame

_PARTS: Final = (
    "memory_gib", "usable_memory", "interval_ms", "warnings", "variants", "plan", "workload",
    "cluster",
)  # fmt: skip
NUMBERS: Final = tuple(one.name for one in fields(Prediction) if one.name not in _PARTS)
"""The fields of a prediction that are one number or word."""


@dataclass(frozen=True, kw_only=True)
class WhatIfPoint:
    """One changed machine or workload: its prediction, or ``error``, which says why it has none.

    ``changes`` maps a key to the value asked for.
    """

    changes: dict[str, str]
    prediction: Prediction | None = None
    error: str | None = None

    def to_json(self) -> Any:
        """Return changes, error, and the fields of the prediction beside them."""
        told = to_json(self.prediction) if self.prediction else {}
        return {"changes": self.changes, "error": self.error, **told}

    @property
    def name(self) -> str:
        """What is changed, in words."""
        changes = (f"{key}={value}" for key, value in self.changes.items())
        return ", ".join(changes) or "unchanged"


@dataclass(frozen=True, kw_only=True)
class WhatIf(Shown):
    """The plan unchanged (``base``), and at each point of the change or sweep.

    ``stopped_by``: why a job's sweep ended before the last point, ``user`` or ``time``; the best
    plan of its last point is then the best so far. None if it has all points.
    """

    model: ModelSpec
    profile: ProfileRef
    base: WhatIfPoint
    points: tuple[WhatIfPoint, ...]
    sweep: str | None
    retuned: bool
    notes: tuple[str, ...]
    stopped_by: str | None = None

    def tables(self) -> Sequence[Table]:
        """Return one table: one row per point, the unchanged case first."""
        base = self.base.prediction
        assert base is not None
        table = Table(
            title=workload_line(self.model, base.workload, base.cluster, self.profile.name),
            columns=(
                "change", "plan", ">iteration", ">unchanged / this", ">baseline", ">bound",
                ">speedup", ">exposed", ">memory", ">fits", ">tokens/s/GPU", ">MFU", ">clock",
                ">J/token", "confidence",
            ),
            rows=[_point_row(point, base) for point in (self.base, *self.points)],
            notes=[_replay_line(self), *_stopped_line(self)],
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
            for text in point.prediction.warnings if point.prediction else ():
                about.setdefault(text, []).append(point.name)
        return [
            *(f"{'; '.join(names)}: {text}" for text, names in about.items()),
            *(f"{self.at(one)}: {one.error}" for one in self.points if one.error),
        ]

    def at(self, point: WhatIfPoint) -> str:
        """Return what is swept at a point, in words; without a sweep what is changed."""
        return f"{self.sweep}={point.changes[self.sweep]}" if self.sweep else point.name

    def to_frame(self) -> DataFrame:
        """Return one row per point, the unchanged case first, with a column of texts for each
        change.

        If a point cannot be predicted, ``error`` says why and its numbers are missing.
        """
        points = (self.base, *self.points)
        keys = list(dict.fromkeys(key for point in points for key in point.changes))
        rows = []
        for point in points:
            row = {**dict.fromkeys(keys, ""), **point.changes, "error": point.error or ""}
            if found := point.prediction:
                row |= {name: getattr(found, name) for name in NUMBERS}
                row["plan"] = found.plan.label
            rows.append(row)
        return frame(rows, [*keys, "plan", *NUMBERS, "error"])


@dataclass(frozen=True, kw_only=True)
class WhatIfResult(WhatIf):
    """The same on the machine that computed it. ``unchanged``: the simulation of ``base``, with the
    data for pages."""

    unchanged: SimulateResult = field(metadata=HIDDEN, repr=False)


def _stopped_line(result: WhatIf) -> list[str]:
    if not result.stopped_by:
        return []
    best = ", and the last plan is the best so far" * result.retuned
    return [f"Swept{stopped_words(result.stopped_by)}: points are missing{best}."]


def _replay_line(result: WhatIf) -> str:
    if result.retuned:
        return "Each row is the best plan of its point."
    return "Every row replays the same plan and order; --retune finds the best plan of each point."


def _point_row(point: WhatIfPoint, base: Prediction) -> tuple[str, ...]:
    name, found = point.name, point.prediction
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


def _power(found: Prediction) -> tuple[str, str]:
    if found.clock_mhz is None or found.joules_per_token is None:
        return "–", "–"
    return f"{found.clock_mhz:,} MHz", f"{found.joules_per_token:.3g}"
