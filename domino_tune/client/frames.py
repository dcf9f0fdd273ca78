"""Lists as pandas DataFrames; pandas is imported where one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from domino_tune.results.shown import frame

if TYPE_CHECKING:
    from pandas import DataFrame


class Listing(dict[str, Any]):
    """A page of a list, as the server's JSON: ``items``, and ``next``, the cursor of the page
    after."""

    def to_frame(self) -> DataFrame:
        """Return one row an item; what an item's objects hold has columns of its own."""
        return rows_frame(self["items"])


def rows_frame(items: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return one row an item, with the columns of all."""
    rows = [_row(one) for one in items]
    return frame(rows, list(dict.fromkeys(name for row in rows for name in row)))


def _row(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the item's values; of objects theirs, of lists texts."""
    found: dict[str, Any] = {}
    for name, value in item.items():
        if isinstance(value, Mapping):
            inner = _row(value)
            found |= {key: one for key, one in inner.items() if key not in item}
        elif isinstance(value, list):
            found[name] = "; ".join(map(str, value))
        else:
            found[name] = value
    return found
