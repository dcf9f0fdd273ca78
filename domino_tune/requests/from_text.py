"""Requests from texts: a row of a table, a job file, ``--set key=value``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from domino_tune.requests.options import Request, is_list, refusal
from simulator.errors import InputError, unknown_name

Asked = TypeVar("Asked", bound=Request)


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
    values: dict[str, Any] = {}
    for name, text in by_field(row).items():
        if name not in kind.model_fields:
            raise unknown_name("column", name, kind.model_fields)
        if text:
            annotation = kind.model_fields[name].annotation
            values[name] = text.split() if is_list(annotation) else text
    return from_values(kind, values)


def from_values(kind: type[Asked], values: Mapping[str, Any]) -> Asked:
    """Return the request of values that may be texts. Raise InputError."""
    try:
        return kind.model_validate(values, strict=False)
    except ValidationError as error:
        raise refusal(kind, error) from None
