"""Results: what the verbs return, as JSON, tables and DataFrames. May import store and below.

One module a verb, or for a few that are alike, imported by the commands that need it.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Any, Final, TypeVar

from domino_tune.store.parsing import without
from simulator.plan import SlicePlan

# Results as JSON, as `--json` and the API give them -----------------------------------------------

Made = TypeVar("Made")
LabelledPlan = Annotated[SlicePlan, without("label")]
"""A plan of a result: its JSON holds, besides the fields, the label that they make."""
HIDDEN: Final = {"json": False}
"""Metadata of a field that pages and traces need and JSON does not show."""


def made_of(kind: type[Made], value: Any, **more: Any) -> Made:
    """Return a ``kind``, a dataclass, with the fields of ``value`` that have its names, and
    ``more``."""
    names = (item.name for item in fields(kind) if item.name not in more)  # type: ignore[arg-type]
    return kind(**{name: getattr(value, name) for name in names}, **more)


def fields_json(value: Any) -> dict[str, Any]:
    """Return a dataclass as JSON: its fields, in their order, but those that are ``HIDDEN``."""
    shown = (item for item in fields(value) if item.metadata.get("json", True))
    return {item.name: to_json(getattr(value, item.name)) for item in shown}


def to_json(value: Any) -> Any:
    """Return ``value`` as JSON: results by ``to_json``, dataclasses as objects, tuples as lists."""
    if isinstance(value, SlicePlan):
        return {"label": value.label, **{k: to_json(v) for k, v in asdict(value).items()}}
    if hasattr(value, "to_json"):
        return value.to_json()
    if hasattr(value, "__dataclass_fields__"):
        return fields_json(value)
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, float):
        return round(value, 6)
    return value
