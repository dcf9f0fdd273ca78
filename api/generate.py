"""Wire types generated from dataclasses: bodies from requests, answers from results.

A new field of a request or a result appears on the wire without another line of code.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Collection
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

import pydantic
from pydantic import BaseModel, ConfigDict, create_model

from api.wire import SLUG
from domino_tune.requests import Request
from domino_tune.requests.fields import NEEDED
from domino_tune.requests.options import Option, option_of
from simulator.plan import SlicePlan

Asked = TypeVar("Asked", bound=Request)

LONGEST_TEXT: Final = 256
"""Most characters of a body's string."""
MOST_ENTRIES: Final = 64
"""Most entries of a body's list."""
LONGEST_SLUG: Final = 64
JOB_ID: Final = r"^job_[0-9a-f]{32}$"
Slug = Annotated[str, pydantic.Field(pattern=SLUG, max_length=LONGEST_SLUG)]
PlanObject = Annotated[
    dict[str, Any],
    pydantic.Field(description="A plan file, whole, as `GET /v1/jobs/{id}/files/plan` gives it."),
]
SPECIAL: Final[dict[str, Any]] = {"model": Slug, "profile": Slug, "plan": PlanObject}
"""Fields that name files on the command line; on the wire they are names, or the file itself."""


class Wire(BaseModel):
    """Base of wire types: no unknown fields, no coercion, every number finite."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class WithPlan(Wire):
    """Base of bodies in which a plan file can stand in for the required fields."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["plan"]}, {"required": list(NEEDED)}]}
    )


class Told(Wire):
    """Base of answers, whose fields are all present in every answer."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


def wire_body(
    name: str,
    request: type[Request],
    *,
    without: Collection[str] = (),
    required: Collection[str] = (),
    doc: str = "",
) -> type[Wire]:
    """Return the strict body of ``request``: its fields with their bounds, except ``without``.

    The ``required`` fields must be given. ``doc`` defaults to the request's docstring.
    """
    hints = hints_of(request)
    made: dict[str, Any] = {
        item.name: _body_field(item, hints[item.name], required=item.name in required)
        for item in fields(request)
        if item.name not in without
    }
    base = WithPlan if "plan" in made else Wire
    return create_model(name, __base__=base, __doc__=doc or inspect.getdoc(request), **made)


def to_request(body: Wire, kind: type[Asked], without: Collection[str] = ()) -> Asked:
    """Return the request in ``body``, without its inline plan and the fields in ``without``."""
    given = body.model_dump(exclude={"plan", *without})
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def _body_field(item: Field[Any], hint: Any, *, required: bool) -> tuple[Any, Any]:
    """Return (type, field) of one option."""
    option = option_of(item)
    optional = NoneType in get_args(hint)
    core = next(arg for arg in get_args(hint) if arg is not NoneType) if optional else hint
    wire = SPECIAL.get(item.name) or _bounded(option, core)
    if get_origin(core) is tuple:
        wire = Annotated[wire, pydantic.Field(max_length=MOST_ENTRIES)]
        return wire, pydantic.Field(default_factory=list, description=option.help)
    if required or item.default is MISSING:
        return wire, pydantic.Field(description=option.help)
    default = pydantic.Field(default=item.default, description=option.help)
    return (wire | None if optional else wire), default


def _bounded(option: Option, core: Any) -> Any:
    """Return the type of an option's value within the bounds of the option."""
    if get_origin(core) is tuple:
        return list[_bounded(option, get_args(core)[0])]  # type: ignore[misc]
    if option.choices:
        return Literal[option.choices]
    if core is int:
        return Annotated[int, pydantic.Field(ge=option.minimum, le=option.maximum)]
    if core is str:
        return Annotated[str, pydantic.Field(min_length=1, max_length=LONGEST_TEXT)]
    assert core is bool, f"no wire type for {core}"
    return core


@functools.cache
def shown(kind: type) -> type[Wire]:
    """Return the wire type of the JSON that ``results.to_json`` makes of the dataclass ``kind``."""
    made = shown_fields(kind)
    if kind is SlicePlan:
        made = {"label": (str, ...), **made}
    return create_model(kind.__name__, __base__=Told, __doc__=inspect.getdoc(kind), **made)


def shown_fields(kind: type, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return (type, default) of every field that JSON shows, or of those in ``names``.

    A field with a default is present in every answer but optional in bodies, because older clients
    do not know it.
    """
    hints = hints_of(kind)
    return {
        item.name: (shown_type(hints[item.name]), ... if item.default is MISSING else item.default)
        for item in fields(kind)
        if item.metadata.get("json", True) and (names is None or item.name in names)
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
