"""results/openapi.json, which is frozen. Write it anew with ``python -m tests.support.frozen``."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from api.app import create_app, route_table
from api.parts import Settings
from tests.conftest import REPOSITORY

FILE: Final = REPOSITORY / "results" / "openapi.json"


@cache
def document() -> dict[str, Any]:
    """The description of the API as it is now; nothing is opened for it."""
    made: dict[str, Any] = create_app(Settings(database_url="sqlite://")).openapi()
    return made


def text(made: dict[str, Any]) -> str:
    """As the file holds it."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def operations(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every operation by its id."""
    return {
        operation["operationId"]: operation
        for path in made["paths"].values()
        for operation in path.values()
    }


__all__ = ["FILE", "document", "operations", "route_table", "text"]

if __name__ == "__main__":
    FILE.write_text(text(document()), encoding="utf-8")
