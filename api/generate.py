"""Wire types generated from dataclasses: bodies from requests, answers from results.

A new field of a request or a result appears on the wire without another line of code.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Collection
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin
from typing import get_type_hints as hints_of

import pydantic
from pydantic import BaseModel, ConfigDict, create_model

from api.problems import SLUG
from domino_tune.requests.fields import NEEDED
from domino_tune.requests.options import Request, option_of
from simulator.plan import SlicePlan

LONGEST_SLUG: Final = 64
Slug = Annotated[str, pydantic.Field(pattern=SLUG, max_length=LONGEST_SLUG)]
PlanObject = Annotated[
    dict[str, Any],
    pydantic.Field(description="A plan file, whole, as `GET /v1/jobs/{id}/files/plan` gives it."),
]
SPECIAL: Final[dict[str, Any]] = {"model": Slug, "profile": Slug, "plan": PlanObject}
"""Fields that name files on the command line; on the wire they are names, or the file itself."""


class WireModel(BaseModel):
    """Base of wire types: no unknown fields, no coercion, every number finite."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class WithPlan(Request):
    """Base of bodies in which a plan file can stand in for the required fields."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["plan"]}, {"required": list(NEEDED)}]}
    )


class AnswerModel(WireModel):
    """Base of answers, whose fields are all present in every answer."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


def wire_body(
    name: str, request: type[Request], *, required: Collection[str] = (), **changed: Any
) -> type[Any]:
    """Return the body of ``request``: itself, with names in place of files, and the ``required``
    fields. ``changed``: fields that are otherwise here, as (type, default)."""
    made: dict[str, Any] = {}
    for field, item in request.model_fields.items():
        needed = field in required or item.is_required()
        if field in SPECIAL or needed:
            core: Any = SPECIAL.get(field) or item.annotation
            core = get_args(core)[0] if NoneType in get_args(core) else core
            kind = core if needed else core | None
            told = option_of(request, field)
            made[field] = (Annotated[kind, *item.metadata[:-1], told], ... if needed else None)
    bases = (WithPlan, request) if "plan" in request.model_fields else (request,)
    return create_model(name, __base__=bases, __doc__=inspect.getdoc(request), **made | changed)


@functools.cache
def shown(kind: type, *, but: tuple[str, ...] = ()) -> type[WireModel]:
    """Return the wire type of the JSON that ``results.to_json`` makes of the dataclass ``kind``,
    without the fields ``but``."""
    made = shown_fields(kind, but=but)
    if kind is SlicePlan:
        made = {"label": (str, ...), **made}
    return create_model(kind.__name__, __base__=AnswerModel, __doc__=inspect.getdoc(kind), **made)


def shown_fields(
    kind: type, names: Collection[str] | None = None, *, but: Collection[str] = ()
) -> dict[str, Any]:
    """Return (type, default) of every field that JSON shows ``but`` some, or of those in ``names``.

    A field with a default is present in every answer but optional in bodies, because older clients
    do not know it.
    """
    hints = hints_of(kind)
    return {
        item.name: (shown_type(hints[item.name]), ... if item.default is MISSING else item.default)
        for item in fields(kind)
        if item.metadata.get("json", True) and item.name not in but
        if names is None or item.name in names
    }


def shown_type(hint: Any) -> Any:
    """Return a field's wire type: dataclasses as ``shown`` returns them, tuples as lists."""
    if isinstance(hint, type) and is_dataclass(hint):
        return shown(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, (shown_type(arg) for arg in inner))
    if origin is tuple:
        # The first of a hundred thousand faulty entries is enough.
        return Annotated[list[shown_type(inner[0])], pydantic.FailFast()]  # type: ignore[misc]
    if origin is dict:
        return dict[inner[0], shown_type(inner[1])]  # type: ignore[misc,valid-type]
    return hint
