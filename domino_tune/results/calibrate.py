"""Result of calibrate: what the runs showed about each part, and how well it predicts others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from domino_tune.base.tables import Table
from domino_tune.results.shown import Shown, frame
from domino_tune.results.texts import ms
from domino_tune.store.plans import ProfileRef

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True)
class CalibratedRun:
    """A run in ms: measured, and predicted by the profile before, after a fit to all runs, and
    after a fit to all other runs.
    """

    label: str
    measured_ms: float
    before_ms: float
    after_ms: float
    left_out_ms: float


@dataclass(frozen=True, kw_only=True)
class LearntPart:
    """A part's factor, and its relative standard error before (``prior``) and after the runs."""

    part: str
    factor: float
    prior: float
    error: float


@dataclass(frozen=True, kw_only=True)
class CalibrateResult(Shown):
    """The new profile, and the runs that it is based on. Errors are means of absolute relative
    errors; ``left_out_error``: of runs that were predicted by the others. ``path``: the profile's
    file, None if a service keeps it. ``notes``: facts about the runs that were ignored or derived.
    """

    profile: ProfileRef
    path: str | None = None
    parts: tuple[LearntPart, ...]
    constant_ms: float
    constant_error_ms: float
    runs: tuple[CalibratedRun, ...]
    before_error: float
    after_error: float
    left_out_error: float
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return the parts, and the runs."""
        parts = Table(
            title=f"What {len(self.runs)} runs told; profile {self.profile.name} is calibrated",
            columns=("part", ">factor", ">error before", ">error now", "learnt"),
            rows=[
                (one.part, f"{one.factor:.3f}", f"{one.prior:.1%}", f"{one.error:.1%}",
                 f"{max(0.0, 1 - one.error / one.prior):.0%}")
                for one in self.parts
            ],
            notes=(
                f"Every iteration takes {self.constant_ms:.1f} ms more "
                f"(± {self.constant_error_ms:.1f}).",
                f"Mean error: {self.before_error:.1%} before, {self.after_error:.1%} with all "
                f"runs, {self.left_out_error:.1%} of a run that the others predict.",
                f"Written: {self.path}" if self.path else f"Kept as {self.profile.name}.",
            ),
        )  # fmt: skip
        runs = Table(
            title="Runs",
            columns=("run", ">measured", ">before", ">calibrated", ">by the others", ">error"),
            rows=[
                (one.label, ms(one.measured_ms), ms(one.before_ms), ms(one.after_ms),
                 ms(one.left_out_ms), f"{one.left_out_ms / one.measured_ms - 1:+.1%}")
                for one in self.runs
            ],
            narrow=("before",),
            notes=self.notes,
        )  # fmt: skip
        return runs, parts

    def alerts(self) -> Sequence[str]:
        """Return warnings about implausible factors."""
        return self.warnings

    def to_frame(self) -> DataFrame:
        """Return one row per run."""
        return frame([asdict(one) for one in self.runs],
                     [item.name for item in fields(CalibratedRun)])  # fmt: skip
