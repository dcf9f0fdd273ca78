"""Where profiles and models are looked up by name: on disk, pinned, or in SQL (the service)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Protocol

from domino_tune.store.models import LoadedModel, load_model, override
from domino_tune.store.profiles import load_profile
from simulator.profile import Profile


class Shelf(Protocol):
    """Looks up the profile and the model that a request names."""

    def profile(self, name: str) -> Profile:
        """Return the profile. Raise InputError for an unknown name."""
        ...

    def model(self, name: str, overrides: Iterable[str] = ()) -> LoadedModel:
        """Return the model with ``FIELD=VALUE`` overrides. Raise InputError for an unknown name."""
        ...


class Disk:
    """Bundled profiles and presets, the user's own profiles, and files by path."""

    def profile(self, name: str) -> Profile:
        """See ``store.profiles.load_profile``."""
        return load_profile(name)

    def model(self, name: str, overrides: Iterable[str] = ()) -> LoadedModel:
        """See ``store.models.load_model``."""
        return load_model(name, overrides)


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


DISK: Final[Shelf] = Disk()
