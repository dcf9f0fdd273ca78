"""results.plain backwards: frozen results from the JSON that a server sent, strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from domino_tune.results import Simulated, Tuned
from simulator.errors import DominoTuneError, InputError
from simulator.plan import SlicePlan

LABEL: Final = "label"
"""What a plan's JSON holds besides its fields: a name made of them."""


def from_json(kind: Any, value: Any, where: str) -> Any:
    """A ``kind`` (dataclass, tuple, dict, optional or plain type) of parsed JSON.

    Raises InputError, beginning with ``where``, for an unknown or missing key and another type.
    """
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        inner = [one for one in get_args(kind) if one is not NoneType]
        return None if value is None else from_json(inner[0], value, where)
    if origin is Literal:
        return _one_of(get_args(kind), value, where)
    if origin is tuple:
        entries = enumerate(_expect(list, value, where))
        return tuple(from_json(get_args(kind)[0], one, f"{where}/{at}") for at, one in entries)
    if origin is dict:
        entry = get_args(kind)[1]
        held = _expect(dict, value, where)
        return {key: from_json(entry, one, f"{where}/{key}") for key, one in held.items()}
    if is_dataclass(kind):
        return _made(kind, _expect(dict, value, where), where)
    return _expect(kind, value, where)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _made(kind: Any, value: dict[str, Any], where: str) -> Any:
    held = dict(value)
    if kind is SlicePlan:
        held.pop(LABEL, None)
    hints = _hints(kind)
    for key in held:
        if key not in hints:
            raise InputError(f"{where}: unknown key {key!r}; known: {', '.join(hints)}.")
    for item in fields(kind):
        if item.default is MISSING and item.name not in held:
            raise InputError(f"{where}: the key {item.name!r} is missing.")
    given = {key: from_json(hints[key], one, f"{where}/{key}") for key, one in held.items()}
    try:
        return kind(**given)
    except DominoTuneError as error:
        raise InputError(f"{where}: {error}") from None


def _one_of(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in choices:
        raise InputError(f"{where} must be one of {', '.join(map(str, choices))}, got {value!r}.")
    return value


def _expect(kind: type[Any], value: Any, where: str) -> Any:
    good = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not good or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{where} must be of type {kind.__name__}, got {type(value).__name__}.")
    return value


def simulated_from_json(value: Any) -> Simulated:
    """What ``simulate --json`` prints, as a result. Raises InputError for anything else."""
    made: Simulated = from_json(Simulated, value, "simulation")
    return made


def tuned_from_json(value: Any, *, seconds: float) -> Tuned:
    """What ``tune --json`` prints less its ``seconds``: a server does not tell any, so these are
    the asker's own. Raises InputError for anything else."""
    if not isinstance(value, dict):
        raise InputError(f"A tune result must be an object, got {type(value).__name__}.")
    hints = _hints(Tuned)
    names = [item.name for item in fields(Tuned) if item.name not in ("best", "seconds")]
    held = {name: from_json(hints[name], value.get(name), name) for name in names}
    best = simulated_from_json(value.get("simulation"))
    made = Tuned(best=best, seconds=seconds, **held)
    again = {key: one for key, one in made.to_json().items() if key != "seconds"}
    differing = [key for key in {**again, **value} if _entry(again, key) != _entry(value, key)]
    if differing:
        raise InputError(f"A tune result contradicts itself in: {', '.join(differing)}.")
    return made


def _entry(value: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    """What stands under ``key``; empty where nothing does, not even null."""
    return (value[key],) if key in value else ()
