"""Pages of a complete list: a cursor is the key of the last entry of the page before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from starlette.responses import Response

from api.jobs import page
from simulator.errors import InputError

Entry = TypeVar("Entry")


def sliced(
    entries: Sequence[Entry],
    key: Callable[[Entry], str],
    plain: Callable[[Entry], Any],
    cursor: str | None,
    limit: int,
) -> Response:
    """Return ``limit`` entries after ``cursor`` as JSON. Raise InputError for a bad cursor."""
    keys = [key(entry) for entry in entries]
    if cursor is not None and cursor not in keys:
        raise InputError(f"{cursor[:64]!r} is no cursor; take `next` of the page before.")
    first = 0 if cursor is None else keys.index(cursor) + 1
    shown = entries[first : first + limit]
    more = first + limit < len(entries)
    return page([plain(entry) for entry in shown], keys[first + limit - 1] if more else None)
