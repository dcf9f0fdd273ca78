"""option(): a request's field with its help, flag, choices and range, all said once.

The command line is generated from these fields, and requests check themselves against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final

from simulator.errors import InputError, unknown_name

KEY: Final = "domino_tune.option"
MOST: Final = 10**9
"""The largest whole number of an option that does not say its own."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """What the user is told about a field and may give. ``flag`` empty: a positional argument."""

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
    """A dataclass field with an Option; no ``default`` makes it required."""
    said = Option(
        help=help, flag=flag, metavar=metavar, choices=tuple(choices),
        minimum=minimum, maximum=maximum,
    )  # fmt: skip
    if default is MISSING:
        return field(metadata={KEY: said})
    return field(default=default, metadata={KEY: said})


def option_of(item: Field[Any]) -> Option:
    """The Option of a request's field."""
    said = item.metadata[KEY]
    assert isinstance(said, Option)
    return said


def check_options(request: Any) -> None:
    """Raise InputError for a value outside its field's choices or range; None is always allowed."""
    for item in fields(request):
        said, value = option_of(item), getattr(request, item.name)
        if value is None:
            continue
        label = said.flag or item.name
        for entry in value if isinstance(value, tuple) else (value,):
            if said.choices and entry not in said.choices:
                raise unknown_name(f"{label} value", str(entry), said.choices)
            if said.minimum is not None and (
                not isinstance(entry, int) or isinstance(entry, bool) or entry < said.minimum
            ):
                raise InputError(
                    f"{label} must be a whole number ≥ {said.minimum}, got {_brief(entry)}; "
                    "correct it."
                )
            if said.minimum is not None and entry > said.maximum:
                raise InputError(
                    f"{label} must be a whole number ≤ {said.maximum}, got {_brief(entry)}; "
                    "correct it."
                )


def _brief(value: object) -> str:
    """The value, or how long it is: Python refuses to print whole numbers of 4301 digits."""
    if isinstance(value, int) and abs(value) > 10**40:
        return "a number of more than 40 digits"
    return repr(value)
