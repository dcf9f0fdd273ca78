"""The JSON Schema of profile files, which ``profiles/schema.json`` holds."""

from __future__ import annotations

from typing import Any

from domino_tune.store.parsing import adapter
from simulator.profile import SCHEMA, Profile


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a profile file."""
    whole = adapter(Profile).json_schema()
    definitions = whole["$defs"]
    schema: dict[str, Any] = definitions.pop("Profile")
    schema["properties"] = {
        "checksum": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
        **schema["properties"],
    }
    schema["properties"]["schema"] = {"const": SCHEMA}
    schema["required"] = sorted({"checksum", "schema", *schema["required"]})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "domino_tune profile",
        "$defs": definitions,
    }
