"""Flat dataclasses from parsed JSON, strictly: no unknown key, none missing, no other type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_args, get_type_hints

from simulator.errors import DominoTuneError, unknown_name

Made = TypeVar("Made")


def strict(
    kind: type[Made], parsed: Any, *, source: str, error: type[DominoTuneError], whole: bool = False
) -> Made:
    """A ``kind`` of ``parsed``; ``whole`` wants fields that have a default, too.

    Raises ``error``, beginning with ``source``, for anything else.
    """
    if not isinstance(parsed, Mapping):
        raise error(f"{source} must be an object, got {type(parsed).__name__}.")
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    for key in parsed:
        if key not in known:
            raise error(f"{source}: {unknown_name('key', str(key), known)}")
    for key, item in known.items():
        if key not in parsed and (whole or item.default is MISSING):
            raise error(f"{source}: the key {key!r} is missing; add it.")
    hints = get_type_hints(kind)
    for key, value in parsed.items():
        _check_type(f"{source}: {key}", hints[key], value, error)
    try:
        return kind(**parsed)
    except DominoTuneError as failure:
        raise error(f"{source}: {failure}") from None


def _check_type(where: str, kind: Any, value: Any, error: type[DominoTuneError]) -> None:
    choices = get_args(kind)
    if choices:
        if value not in choices:
            raise error(f"{where} must be one of {', '.join(map(str, choices))}, got {value!r}.")
        return
    good = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not good or (kind is not bool and isinstance(value, bool)):
        raise error(f"{where} must be of type {kind.__name__}, got {value!r}.")
