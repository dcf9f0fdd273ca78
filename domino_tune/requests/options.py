"""Options: what a field of a request says to people, and its values, also from texts.

    tp: Annotated[Count | None, common("Tensor-parallel ranks.")] = None

The command line, the API, the client and the page are made of these fields.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails

from simulator.errors import DominoTuneError, InputError, unknown_name

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # it has no public name

MOST: Final = 10**9
"""The largest whole number of an option without its own bound."""
LONGEST_TEXT: Final = 256
MOST_ENTRIES: Final = 64
GROUPS: Final = ("Common options", "Job", "Machine", "Plan", "Search", "Output")
"""Groups of options, in the order of the help."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """Help of a field. ``argument``: it is given by its place; ``rare``: by ``--set`` or in a job
    file alone; ``flag``: what errors call it where that is not its name."""

    help: str
    group: str = ""
    metavar: str = ""
    argument: bool = False
    rare: bool = False
    flag: str = ""

    def flag_of(self, name: str) -> str:
        """Return what errors call the field ``name``: ``--micro-batch-size``."""
        return name if self.argument else self.flag or f"--{name.replace('_', '-')}"

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return {**handler(schema), "description": self.help}


def option(help: str, **told: Any) -> Option:
    """Return the Option of a field."""
    return Option(help=help, **told)


common = partial(option, group="Common options")
job = partial(option, group="Job")
machine = partial(option, group="Machine")
slicing = partial(option, group="Plan")
searching = partial(option, group="Search")
output = partial(option, group="Output")


def _listed(value: Any, told: ValidationInfo) -> Any:
    """Return one text, or a list, as a tuple; JSON has lists only."""
    if told.mode != "json" and isinstance(value, str | os.PathLike):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _path_text(value: Any) -> Any:
    """Return a path as a text that is never a name."""
    return os.path.join(os.curdir, value) if isinstance(value, os.PathLike) else value


T = TypeVar("T")
Several = Annotated[tuple[T, ...], Field(max_length=MOST_ENTRIES), BeforeValidator(_listed)]
Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
Texts = Several[Text]
FileName = Annotated[str, BeforeValidator(_path_text)]
"""A file, or a name that a file can stand for."""
FileNames = Several[FileName]
Count = Annotated[int, Field(ge=1, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]


class _Refusing(ModelMetaclass):
    """Raises InputError for wrong values where a request is made in Python; what reads JSON gets
    pydantic's error, with all faults and their places."""

    def __call__(cls, **given: Any) -> Any:
        try:
            return super().__call__(**given)
        except ValidationError as error:
            raise refusal(cast(type[Request], cls), error) from None


class Request(BaseModel, metaclass=_Refusing):
    """Base of all requests. Raise InputError for a wrong value."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True
    )

    def but(self, **changes: Any) -> Self:
        """Return the request with these fields changed."""
        return type(self)(**{**dict(self), **changes})

    def given(self) -> dict[str, Any]:
        """Return the fields that are not at their default."""
        return {
            name: value
            for name, value in self
            if (item := type(self).model_fields[name]).is_required() or value != item.default
        }


@cache
def options_of(kind: type[Request]) -> Mapping[str, Option]:
    """Return the Option of each field that has one; a body of the API has fields without."""
    return {
        name: one
        for name, item in kind.model_fields.items()
        for one in item.metadata
        if isinstance(one, Option)
    }


def option_of(kind: type[Request], name: str) -> Option:
    """Return the Option of a field."""
    return options_of(kind)[name]


def flag_of(kind: type[Request], name: str) -> str:
    """Return what errors call a field: ``--micro-batch-size``."""
    return option_of(kind, name).flag_of(name)


def choices_of(annotation: Any) -> tuple[str, ...]:
    """Return the values that a field's type allows; () for any others."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return next((found for one in get_args(annotation) if (found := choices_of(one))), ())


def is_list(annotation: Any) -> bool:
    """Return whether a field of this type takes several values."""
    return get_origin(annotation) is tuple


def core_of(annotation: Any) -> type:
    """Return int, bool or str: what a field takes, or each entry of a list."""
    if annotation in (int, bool, str):
        return cast(type, annotation)
    if get_origin(annotation) is Literal:
        return str
    return core_of(next(one for one in get_args(annotation) if one is not NoneType))


def refusal(kind: type[Request], error: ValidationError) -> DominoTuneError:
    """Return the first fault as an error in words; missing fields are reported together."""
    faults = error.errors(include_url=False)
    first = faults[0]
    if isinstance(own := first.get("ctx", {}).get("error"), DominoTuneError):
        return InputError(f"{flag_of(kind, str(first['loc'][0]))} {own}") if first["loc"] else own
    missing = [flag_of(kind, str(one["loc"][0])) for one in faults if one["type"] == "missing"]
    if missing:
        them = "it" if len(missing) == 1 else "them"
        return InputError(f"Missing {', '.join(missing)}: give {them}.")
    name, got = str(first["loc"][0]), first["input"]
    if name not in kind.model_fields:
        return unknown_name("field", name, kind.model_fields)
    flag, annotation = flag_of(kind, name), kind.model_fields[name].annotation
    if first["type"] == "literal_error":
        return unknown_name(f"{flag} value", str(got), choices_of(annotation))
    wanted = _wanted(core_of(annotation), first)
    return InputError(f"{flag} must be {wanted}, got {_brief(got)}; correct it.")


def _wanted(core: type, fault: ErrorDetails) -> str:
    """Return in words what a field takes that was given something else."""
    bounds = fault.get("ctx", {})
    if fault["type"] == "tuple_type":
        return "a text or a list of them"
    if core is int:
        bound = f" ≥ {bounds['ge']}" if "ge" in bounds else ""
        return "a whole number" + (f" ≤ {bounds['le']}" if "le" in bounds else bound)
    if fault["type"] == "too_long":
        return f"a list of at most {bounds['max_length']}"
    if core is bool:
        return "true or false"
    return "a text" + (f" of 1 to {LONGEST_TEXT} characters" if bounds else "")


def _brief(value: object) -> str:
    """Return the value as text, but not a long number: Python cannot print one of 4301 digits."""
    if isinstance(value, int) and abs(value) > 10**40:
        return "a number of more than 40 digits"
    return repr(value)[:80]


# Requests from texts ------------------------------------------------------------------------------
# A row of a table, a job file, ``--set key=value``.

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
