"""models: the presets."""

from __future__ import annotations

from domino_tune.requests import ModelsRequest
from domino_tune.results.listed import ModelsResult
from simulator.presets import MODELS


def models(request: ModelsRequest) -> ModelsResult:
    """Return the presets."""
    return ModelsResult(models=tuple(MODELS.values()))
