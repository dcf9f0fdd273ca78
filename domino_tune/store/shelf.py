"""Where profiles and models are looked up by name: on disk, pinned, or (jobs.library) in SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Protocol

from domino_tune.store.models import LoadedModel, load_model, override
from domino_tune.store.profiles import load_profile
from simulator.profile import Profile


class Shelf(Protocol):
    """Looks up what a request names. Both raise InputError for a name that is not there."""

    def profile(self, name: str) -> Profile:
        """The profile of that name."""
        ...

    def model(self, name: str, overrides: Iterable[str] = ()) -> LoadedModel:
        """The model of that name, with ``FIELD=VALUE`` overrides applied."""
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
    """One profile and one model (before overrides), whatever they are called: looks up nothing."""

    def __init__(self, profile: Profile, model: LoadedModel) -> None:
        self._profile = profile
        self._model = model

    def profile(self, name: str) -> Profile:
        """The pinned profile."""
        return self._profile

    def model(self, name: str, overrides: Iterable[str] = ()) -> LoadedModel:
        """The pinned model with the overrides applied; raises InputError for a bad override."""
        return replace(self._model, spec=override(self._model.spec, overrides))


DISK: Final[Shelf] = Disk()
