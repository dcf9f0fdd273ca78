"""Results of profile and calibrate: what was measured, or what runs showed, about a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final

from domino_tune.base.tables import Table
from domino_tune.results.shown import NONE, Shown, frame, ms
from domino_tune.store.plans import ProfileRef

if TYPE_CHECKING:
    from pandas import DataFrame


MOST_OUTLIERS: Final = 5


@dataclass(frozen=True, kw_only=True)
class MeasuredSection:
    """A section of the file after the run.

    ``rows``: None if the section has a fit instead, 0 if it is missing. ``new``: rows or fits that
    this run added or replaced. ``left``: signatures still to be measured, None if they are not
    counted.
    """

    section: str
    rows: int | None
    new: int
    left: int | None


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A row whose timings disagree; ``spread``: half of the interquartile range over the median."""

    section: str
    op: str
    median_us: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class ProfilingResult(Shown):
    """The profile so far.

    ``complete``: whether it holds everything that was asked for. ``seconds``: time of this run, 0
    if nothing was left to do. ``resume``: the command that continues, None if the profile is
    complete.
    """

    profile: ProfileRef
    path: str
    complete: bool
    seconds: float
    sections: tuple[MeasuredSection, ...]
    outliers: tuple[Outlier, ...]
    rows: int
    left: int
    resume: str | None
    notes: tuple[str, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return one table: the rows of each section, how many are left, and how to continue."""
        table = Table(
            title=f"{self.profile.name} ({self.profile.content_id[:19]}…) in {self.path}",
            columns=("section", ">rows", ">of this run", ">left"),
            rows=[
                (
                    item.section, "fit" if item.rows is None else str(item.rows), str(item.new),
                    NONE if item.left is None else str(item.left),
                )
                for item in self.sections
            ],
            notes=[*_notes(self)],
        )  # fmt: skip
        return (table,)

    def alerts(self) -> Sequence[str]:
        """Return a line for each of the first rows that vary, and how many more there are."""
        return tuple(_outlier_lines(self))

    def to_frame(self) -> DataFrame:
        """Return one row per section: its rows, those of this run, and signatures still
        to measure."""
        columns = [item.name for item in fields(MeasuredSection)]
        counts = frame((asdict(item) for item in self.sections), columns)
        return counts.astype({"rows": "Int64", "left": "Int64"})


def _notes(result: ProfilingResult) -> Iterator[str]:
    yield from result.notes
    if result.complete and result.seconds == 0:
        yield "Complete: nothing was left to measure; no ranks were started."
    elif result.complete:
        yield f"Complete, in {result.seconds:.0f} s."
    else:
        yield (
            f"Not complete: {result.left} measurements are left after {result.seconds:.0f} s. "
            f"To go on: {result.resume}"
        )


def _outlier_lines(result: ProfilingResult) -> Iterator[str]:
    for outlier in result.outliers[:MOST_OUTLIERS]:
        yield (
            f"{outlier.section} {outlier.op}: {outlier.median_us:,.0f} us ± {outlier.spread:.0%}; "
            "something disturbed the machine, or its speed is not steady."
        )
    more = len(result.outliers) - MOST_OUTLIERS
    if more > 0:
        yield f"{more} more rows vary as much; --json lists them."


@dataclass(frozen=True, kw_only=True)
class CalibratedRun:
    """A run in ms: measured, and predicted by the profile before, after a fit to all runs, and
    after a fit to all other runs."""

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

    def to_frame(self) -> DataFrame:
        """Return one row per run."""
        return frame(map(asdict, self.runs))
