"""Turn parsed JSON into typed values, strictly: the only place where pydantic checks
dataclasses."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_type_hints

from pydantic import BeforeValidator, ConfigDict, GetPydanticSchema, TypeAdapter, ValidationError
from pydantic_core import CoreConfig, ErrorDetails, SchemaValidator
from pydantic_core.core_schema import no_info_after_validator_function

from simulator.errors import DominoTuneError, unknown_name

T = TypeVar("T")
Place = tuple[str | int, ...]
_STRICT: Final = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_CORE: Final = CoreConfig(extra_fields_behavior="forbid", strict=True, allow_inf_nan=False)
"""The same for pydantic-core."""
_LISTS: Final = ("list", "tuple")  # pydantic-core's names
_UNKNOWN: Final = "unexpected_keyword_argument"  # pydantic's name for an unknown key


def parse(
    kind: type[T], value: Any, *, source: str, error: type[DominoTuneError], whole: bool = False
) -> T:
    """Return parsed JSON ``value`` as a ``kind``: a dataclass, or any type made of them.

    Nothing is converted, except that a whole number is accepted as a float. ``whole`` also requires
    the fields that have a default. Raise ``error`` with one line: ``source``, the place, the
    reason.
    """
    try:
        reader = _reader(kind)  # type: ignore[arg-type]  # mypy: a type[T] may be unhashable
        parsed: T = reader.validate_json(json.dumps([value]))[0]
    except ValidationError as failure:
        place, reason = _first(kind, failure)
        raise error(_line(source, place, reason)).at(*place) from None
    except RecursionError:
        raise error(f"{source} is nested too deeply to be one.") from None
    for *parents, key in _defaulted(parsed, value) if whole else ():
        raise error(_line(source, parents, _missing(key))).at(*parents)
    return parsed


@cache
def adapter(kind: Any) -> TypeAdapter[list[Any]]:
    """Return the reader of a list of ``kind``: only inside a list does config reach a dataclass."""
    return TypeAdapter(list[kind], config=_STRICT)


@cache
def _reader(kind: Any) -> SchemaValidator:
    """Return the reader of a list of ``kind`` that stops in each list at the first faulty entry: a
    file may hold a million, and each fault takes a hundred times its bytes."""
    return SchemaValidator(_to_first_fault(adapter(kind).core_schema), _CORE)


def _to_first_fault(schema: Any) -> Any:
    """Return a copy of pydantic-core's schema that stops in each list at the first fault."""
    if isinstance(schema, list):
        return [_to_first_fault(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _to_first_fault(one) for key, one in schema.items()}
    return made | {"fail_fast": True} if schema.get("type") in _LISTS else made


def without(key: str) -> BeforeValidator:
    """Return an ``Annotated`` marker: the type's JSON object has ``key`` in addition to
    the fields."""

    def drop(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        # From here on pydantic treats the value as Python's, in which a list is not a tuple.
        return {
            name: tuple(item) if isinstance(item, list) else item
            for name, item in value.items()
            if name != key
        }

    return BeforeValidator(drop)


def held_as(form: Any, convert: Callable[[Any], Any]) -> GetPydanticSchema:
    """Return an ``Annotated`` marker: JSON holds a ``form``, which ``convert`` turns into
    the type."""
    return GetPydanticSchema(lambda _, of: no_info_after_validator_function(convert, of(form)))


def _line(source: str, place: Sequence[str | int], reason: str) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return f"{source}: {path.removeprefix('.')}{': ' if path else ''}{reason}"


def _first(kind: Any, failure: ValidationError) -> tuple[Place, str]:
    """Return place and reason of one error; prefer that of an unknown key.

    If a key is misspelt, another is missing: the unknown one comes with the nearest known key.
    """
    errors = failure.errors(include_url=False)
    chosen = next((one for one in errors if one["type"] == _UNKNOWN), errors[0])
    place = chosen["loc"][1:]
    if chosen["type"] == _UNKNOWN:
        *parents, key = place
        return tuple(parents), str(unknown_name("key", str(key), _keys_at(kind, parents)))
    if chosen["type"] == "missing":
        return place[:-1], _missing(place[-1])
    return place, _reason(chosen)


def _missing(key: str | int) -> str:
    return f"the key {key!r} is missing; add it."


def _reason(found: ErrorDetails) -> str:
    if found["type"] == "value_error":  # raised by one of our dataclasses
        return str(found["ctx"]["error"])
    return f"{found['msg'].replace('Input should', 'must')}, got {reprlib.repr(found['input'])}."


def _keys_at(kind: Any, place: Sequence[str | int]) -> list[str]:
    """Return the names of the fields that ``kind`` has at ``place``."""
    if NoneType in get_args(kind):
        return _keys_at(_entry(kind), place)
    if not place:
        return list(get_type_hints(kind))
    first, *rest = place
    inner = get_type_hints(kind)[str(first)] if is_dataclass(kind) else _entry(kind)
    return _keys_at(inner, rest)


def _entry(kind: Any) -> Any:
    """Return the type of the entries of a list, tuple, dict or optional ``kind``."""
    return [one for one in get_args(kind) if one not in (NoneType, Ellipsis)][-1]


def _defaulted(parsed: Any, value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of each field of ``parsed`` for which ``value`` has no key."""
    if isinstance(parsed, tuple) and isinstance(value, list):
        for index, (one, given) in enumerate(zip(parsed, value, strict=True)):
            yield from _defaulted(one, given, (*place, index))
    elif is_dataclass(parsed):
        for item in fields(parsed):
            inner = (*place, item.name)
            if item.name not in value:
                yield inner
            else:
                yield from _defaulted(getattr(parsed, item.name), value[item.name], inner)
