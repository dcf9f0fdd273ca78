"""START HERE: one function per verb, request in, result out, no printing; CLI and API call these."""

from __future__ import annotations

from domino_tune import requests
from domino_tune.results import ModelsResult
from simulator.presets import MODELS


def models(request: requests.ModelsRequest) -> ModelsResult:
    """The presets."""
    return ModelsResult(models=tuple(MODELS.values()))
