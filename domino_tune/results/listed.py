"""Results of verbs that list: models and tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from simulator.specs import ModelSpec


@dataclass(frozen=True, kw_only=True)
class ModelsResult:
    """The models that come with the program."""

    models: tuple[ModelSpec, ...]

    def to_json(self) -> Any:
        """Return one object a model: its fields and its number of parameters."""
        return [{**asdict(model), "parameters": model.parameters} for model in self.models]


@dataclass(frozen=True, kw_only=True)
class TokenResult:
    """A token without its secret; times are RFC 3339 in UTC: ``expires`` never if None,
    ``used`` the last time, to a minute."""

    name: str
    owner: str
    scope: str
    created: str
    expires: str | None = None
    used: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenAddedResult:
    """A new token; ``secret`` is stored nowhere else, and shown by ``to_json`` only."""

    name: str
    owner: str
    scope: str
    secret: str = field(repr=False)
