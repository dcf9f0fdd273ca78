"""option(): a request's field with its help, flag, choices and range.

The command line is made from these fields, and requests check their values against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final

from simulator.errors import InputError, unknown_name

KEY: Final = "domino_tune.option"
MOST: Final = 10**9
"""The largest whole number of an option without its own ``maximum``."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """Help and allowed values of a field. An empty ``flag`` makes a positional argument."""

    help: str
    flag: str = ""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int = MOST


def option(
    help: str,
    *,
    flag: str = "",
    default: Any = MISSING,
    metavar: str = "",
    choices: Sequence[str] = (),
    minimum: int | None = None,
    maximum: int = MOST,
) -> Any:
    """Return a dataclass field with an Option; without ``default`` it is required."""
    spec = Option(
        help=help, flag=flag, metavar=metavar, choices=tuple(choices),
        minimum=minimum, maximum=maximum,
    )  # fmt: skip
    if default is MISSING:
        return field(metadata={KEY: spec})
    return field(default=default, metadata={KEY: spec})


def option_of(item: Field[Any]) -> Option:
    """Return the Option of a request's field."""
    spec = item.metadata[KEY]
    assert isinstance(spec, Option)
    return spec


def check_options(request: Any) -> None:
    """Raise InputError for a value outside its field's choices or range; None is always valid."""
    for item in fields(request):
        spec, value = option_of(item), getattr(request, item.name)
        if value is None:
            continue
        label = spec.flag or item.name
        for entry in value if isinstance(value, tuple) else (value,):
            if spec.choices and entry not in spec.choices:
                raise unknown_name(f"{label} value", str(entry), spec.choices)
            if spec.minimum is not None and (
                not isinstance(entry, int) or isinstance(entry, bool) or entry < spec.minimum
            ):
                raise InputError(
                    f"{label} must be a whole number ≥ {spec.minimum}, got {_brief(entry)}; "
                    "correct it."
                )
            if spec.minimum is not None and entry > spec.maximum:
                raise InputError(
                    f"{label} must be a whole number ≤ {spec.maximum}, got {_brief(entry)}; "
                    "correct it."
                )


def _brief(value: object) -> str:
    """Return the value as text, but not a long number: Python cannot print one of 4301 digits."""
    if isinstance(value, int) and abs(value) > 10**40:
        return "a number of more than 40 digits"
    return repr(value)
