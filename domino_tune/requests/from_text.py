"""Requests from texts: a row of a table, whose columns are options of the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar, get_args, get_type_hints

from domino_tune.requests.fields import Request
from simulator.errors import InputError, unknown_name

Asked = TypeVar("Asked", bound=Request)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
BOOLEANS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def field_name(column: str) -> str:
    """Return the field of an option that is written like ``--micro-batch-size``."""
    return column.strip().removeprefix("--").replace("-", "_")


def by_field(row: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of a row by field. Raise InputError for two columns of one field."""
    cells: dict[str, str] = {}
    for column, cell in row.items():
        name = field_name(column)
        if name in cells:
            raise InputError(f"{name} has two columns; keep one of them.")
        cells[name] = cell.strip()
    return cells


def request_from_text(kind: type[Asked], row: Mapping[str, str]) -> Asked:
    """Return the request of a row; empty cells are options that are not given.

    Raise InputError for an unknown option, or a value of another type.
    """
    hints = get_type_hints(kind)
    known = [item.name for item in fields(kind)]
    values: dict[str, Any] = {}
    for name, text in by_field(row).items():
        if name not in known:
            raise unknown_name("column", name, known)
        if text:
            values[name] = _value(name, hints[name], text)
    return kind(**values)


def _value(column: str, hint: Any, text: str) -> Any:
    kinds = set(get_args(hint)) or {hint}
    if hint == tuple[str, ...]:
        return tuple(text.split())
    if bool in kinds:
        if text.lower() not in BOOLEANS:
            raise InputError(f"{column} must be true or false, got {text!r}; correct it.")
        return BOOLEANS[text.lower()]
    if int in kinds:
        if not _WHOLE.fullmatch(text):
            raise InputError(f"{column} must be a whole number, got {text[:40]!r}; correct it.")
        return int(text)
    return text
