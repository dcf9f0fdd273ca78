"""Results on files: of the plan verbs, and of the profiles verbs."""

from __future__ import annotations

from dataclasses import dataclass, field

from domino_tune.results.simulate import Interval
from domino_tune.store.assumptions import Assumption
from domino_tune.store.plans import ProfileRef
from domino_tune.store.profiles import SectionCheck
from simulator.confidence import Level
from simulator.profile import Machine


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What makes a framework run a plan.

    ``arguments`` are for its script, ``settings`` for its code, ``environment`` for its ranks.
    ``document``: the text of a file that it reads; empty where it reads none. ``notes``: what
    cannot be set in this way.
    """

    to: str
    document: str
    arguments: tuple[str, ...]
    settings: dict[str, bool]
    environment: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SectionResult:
    """A section of a profile: numbers of rows and fits, their relative error and their source."""

    section: str
    kind: str
    rows: int
    fits: int
    error: float | None
    source: str
    clock: str
    note: str


@dataclass(frozen=True, kw_only=True)
class ProfileResult:
    """A profile's machine and sections."""

    name: str
    content_id: str
    created: str
    machine: Machine
    sections: tuple[SectionResult, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How sure the profile makes a prediction: one of the cases that are asked most.

    ``iteration_ms`` and ``interval_ms`` are of two row slices; ``shares``: parts of the time by
    source of the look-up. Where the case cannot be simulated, ``level`` is None and ``note`` says
    why.
    """

    case: str
    level: Level | None
    iteration_ms: float | None = None
    interval_ms: Interval | None = None
    shares: dict[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """A valid profile: each section's leave-out error, what is assumed, how sure it makes."""

    profile: ProfileRef
    sections: tuple[SectionCheck, ...]
    assumptions: tuple[Assumption, ...]
    trust: tuple[Trust, ...]


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """The profile that was written, and the section and number of the rows that were imported.

    ``replaced``: how many of them took the place of a row of the same signature.
    """

    profile: ProfileRef
    path: str
    section: str
    rows: int
    replaced: int
    note: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DiffResult:
    """``differences``: (place, value in the first, value in the second)."""

    first: ProfileRef
    second: ProfileRef
    differences: tuple[tuple[str, str, str], ...]
