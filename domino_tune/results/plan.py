"""What the plan and models verbs answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from domino_tune.store.plans import PlanFile
from simulator.specs import ModelSpec


@dataclass(frozen=True, kw_only=True)
class ModelsResult:
    """The presets."""

    models: tuple[ModelSpec, ...]

    def to_json(self) -> Any:
        """One object a model: its fields, and its number of parameters."""
        return [{**asdict(model), "parameters": model.parameters} for model in self.models]


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """What a plan file holds."""

    plan_file: PlanFile

    def to_json(self) -> Any:
        """The file itself."""
        return self.plan_file.to_json()


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """``arguments`` for the framework's script, ``settings`` for its code, ``environment``.

    ``notes``: what the framework cannot be told this way.
    """

    to: str
    arguments: tuple[str, ...]
    settings: dict[str, bool]
    environment: dict[str, str]
    notes: tuple[str, ...]
