"""A shelf that looks up nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from domino_tune.store.shelf import LoadedModel, override
from simulator.profile import Profile


class Pinned:
    """One profile and one model (before overrides), returned for every name."""

    def __init__(self, profile: Profile, model: LoadedModel) -> None:
        self._profile = profile
        self._model = model

    def profile(self, name: str) -> Profile:
        """Return the pinned profile."""
        return self._profile

    def model(self, name: str, overrides: Iterable[str] = ()) -> LoadedModel:
        """Return the pinned model with the overrides. Raise InputError for a bad override."""
        return replace(self._model, spec=override(self._model.spec, overrides))
