"""Result of the models verb."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from simulator.specs import ModelSpec


@dataclass(frozen=True, kw_only=True)
class ModelsResult:
    """The models that come with the program."""

    models: tuple[ModelSpec, ...]

    def to_json(self) -> Any:
        """Return one object a model: its fields and its number of parameters."""
        return [{**asdict(model), "parameters": model.parameters} for model in self.models]
