"""Results of the plan verbs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from domino_tune.store.plans import PlanFile


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """The content of a plan file."""

    plan_file: PlanFile

    def to_json(self) -> Any:
        """Return the file's object."""
        return self.plan_file.to_json()


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
