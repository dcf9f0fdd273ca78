"""What a slice of a job gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    """``state`` is what the next slice goes on from; with a ``result`` the job is done.

    ``done`` of ``total`` (None: not known) steps; ``text`` says what was done last, ``best`` what
    is best so far. ``points``: (index, JSON) of a sweep that are new. ``artifacts`` by name.
    """

    done: int
    total: int | None = None
    text: str = ""
    best: Mapping[str, Any] | None = None
    points: tuple[tuple[int, bytes], ...] = ()
    state: bytes = b""
    result: bytes | None = None
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
