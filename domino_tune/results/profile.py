"""Result of ``profile``: what was measured, what is left, and how to go on."""

from __future__ import annotations

from dataclasses import dataclass

from domino_tune.store.plans import ProfileRef


@dataclass(frozen=True, kw_only=True)
class MeasuredSection:
    """A section of the file after the run.

    ``rows``: None where the section has a fit instead, 0 where it is missing. ``new``: rows or fits
    that this run added or replaced. ``left``: signatures still to be measured, None where they are
    not counted.
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
class ProfilingResult:
    """The profile so far.

    ``complete``: it holds all that was asked for. ``seconds``: time of this run, 0 where nothing
    was left to do. ``resume``: the command that goes on, None where the profile is complete.
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
