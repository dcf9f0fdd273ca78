"""Profiles and models of a library, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.specs import ModelSpec

Origin = Literal["bundled", "library"]


@dataclass(frozen=True, kw_only=True)
class StoredProfile:
    """A profile's file; ``content_id`` is its ETag."""

    name: str
    origin: Origin
    content_id: str
    body: bytes


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """A model, and notes on how its config was read."""

    name: str
    origin: Origin
    spec: ModelSpec
    notes: tuple[str, ...] = ()
