"""Limits of a profile's numbers and texts: far beyond any machine, but no time that follows
overflows, and no text that is printed moves a terminal's cursor or reorders a line."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, Final

from simulator.errors import ProfileError

# Lowest and highest by the ending of a number's name.
_LIMITS: Final[dict[str, tuple[float, float]]] = {
    "error": (0.0, 10.0),
    "_us": (0.0, 1e9),
    "row_ns": (0.0, 1e9),
    "us_per_mib": (0.0, 1e6),
    "_gb_s": (1e-3, 1e9),
    "tflops": (1e-3, 1e12),
    "factor": (1.0, 1e3),
    "backward_ratio": (1e-3, 1e3),
    "_count": (1.0, 1e6),
}
_ANY: Final = (0.0, 1e15)
LONGEST_TEXT: Final = 1_000
LONGEST_NOTE: Final = 64_000
"""Notes grow: each import repeats the earlier ones."""


@cache
def _limits(name: str) -> tuple[float, float]:
    return next((limits for ending, limits in _LIMITS.items() if name.endswith(ending)), _ANY)


def check_values(place: str, name: str, value: Any) -> None:
    """Raise ProfileError for the first number within ``value`` that no machine can have, and for
    the first text that is too long, or holds control, format or bidirectional characters.

    The limits of a list or mapping apply to each entry. A GEMM law's params have limits of their
    own (see ``simulator.lookup.gemm_law``).
    """
    if name == "params" or value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(place, name, value)
    elif isinstance(value, int | float):
        low, high = _limits(name)
        if not low <= value <= high:
            raise ProfileError(f"{place} must be from {low:g} to {high:g}, got {value!r}.")
    elif hasattr(value, "__dataclass_fields__"):
        for item in fields(value):
            check_values(f"{place}.{item.name}", item.name, getattr(value, item.name))
    elif hasattr(value, "_fields"):
        for part, entry in zip(value._fields, value, strict=True):
            check_values(f"{place}.{part}", part, entry)
    elif isinstance(value, dict):
        for key, entry in value.items():
            _check_text(f"a key of {place}", name, key)
            check_values(f"{place}.{key}", name, entry)
    else:
        for index, entry in enumerate(value):
            check_values(f"{place}[{index}]", name, entry)


def _check_text(place: str, name: str, text: str) -> None:
    longest = LONGEST_NOTE if name == "note" else LONGEST_TEXT
    if len(text) > longest:
        raise ProfileError(
            f"{place} may have {longest:,} characters, got {len(text):,}; shorten it."
        )
    if not text.isprintable():
        bad = next(character for character in text if not character.isprintable())
        raise ProfileError(
            f"{place} holds the character U+{ord(bad):04X}, which is not printed as itself; leave "
            "it out."
        )
