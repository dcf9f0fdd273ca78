"""Print a result as JSON or as its table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def answer(result: Any, as_json: bool, table: Callable[[Any], None]) -> None:
    """Print the result as JSON or as its table."""
    from domino_tune.results import to_json

    if as_json:
        sys.stdout.write(json_text(to_json(result)))
    else:
        table(result)


def json_text(value: Any) -> str:
    """Return ``value`` as indented JSON with a final newline."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
