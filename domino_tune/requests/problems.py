"""Errors as problems (RFC 9457), for refused requests and failed jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from domino_tune.base.errors import meaning_of
from domino_tune.requests.fields import PlanFields
from domino_tune.requests.options import Request, choices_of, options_of
from simulator.errors import DominoTuneError, InfeasiblePlanError

TYPES: Final = "/static/problems.html"
_FLAG: Final = re.compile(r"--[a-z][a-z0-9-]*")
_TOLD: Final = re.compile(rf"({_FLAG.pattern})( (?=[0-9]))?")
"""An option, and the blank before its number."""
_VALUED: Final = re.compile(rf"({_FLAG.pattern})(?: ([a-z0-9_]+))?")
"""An option, and the word after it."""
_SET: Final = re.compile(r"--set ([a-z0-9_]+)")
_END: Final = re.compile(r"[;.] ")
"""The end of what is wrong; hints come after it."""
_SUBJECT: Final = re.compile(rf"({_FLAG.pattern})|\b([a-z][a-z0-9_]*)(?= (?:=|×|'|[0-9]))")
"""An option, or a word with a value."""


def plain_problem(error: BaseException) -> dict[str, Any]:
    """Return the error as a problem; ``detail`` names fields as bodies do, and hides a bug's text.

    The problem of an InfeasiblePlanError also has its ``reason``, and its ``change`` if it has one.
    """
    meaning = meaning_of(error)
    known = isinstance(error, DominoTuneError)
    problem = {
        "type": type_of(meaning.title),
        "title": meaning.title,
        "status": meaning.http_status,
        "detail": in_wire_words(str(error)) if known else "A bug; the server's log says more.",
    }
    if isinstance(error, InfeasiblePlanError):
        problem["reason"] = error.reason
        if error.change:
            problem["change"] = error.change
    return problem


def type_of(title: str) -> str:
    """Return the type of a problem: the URI of the service's page that explains it."""
    return f"{TYPES}#{title.lower().replace(' ', '-')}"


def in_wire_words(text: str) -> str:
    """Return ``text`` with each command-line option replaced by its name in bodies: ``tp = 8`` for
    ``--tp 8``, ``etp=1`` for ``--set etp=1``."""

    def named(told: re.Match[str]) -> str:
        name = _fields_by_flag().get(told[1])
        return told[0] if name is None else name + " = " * bool(told[2])

    fields = {*_fields_by_flag().values()}
    text = _SET.sub(lambda told: told[1] if told[1] in fields else told[0], text)
    return _TOLD.sub(named, text)


def fields_named(text: str) -> tuple[str, ...]:
    """Return the fields that ``text`` finds fault with, in its order: those that it names by their
    options or with their values, before its hints."""
    said = _END.split(text, maxsplit=1)[0]
    named = dict.fromkeys(
        _fields_by_flag().get(flag, "") if flag else word
        for flag, word in _SUBJECT.findall(said)
        if flag or word in PlanFields.model_fields
    )
    return tuple(name for name in named if name)


def in_typed_words(text: str) -> str:
    """Return ``text`` with each field that no option gives as ``--set`` gives it."""

    def named(told: re.Match[str]) -> str:
        name = _rare_by_flag().get(told[1])
        if name is None:
            return told[0]
        values = choices_of(PlanFields.model_fields[name].annotation)
        value = told[2] if told[2] and (told[2].isdigit() or told[2] in values) else None
        return f"--set {name}" + (f"={value}" if value else f" {told[2]}" * bool(told[2]))

    return _VALUED.sub(named, text)


@cache
def _rare_by_flag() -> Mapping[str, str]:
    return {
        told.flag_of(name): name
        for name, told in options_of(PlanFields).items()
        if told.rare and not told.flag
    }


@cache
def _fields_by_flag() -> Mapping[str, str]:
    found: dict[str, str] = {}
    kinds: list[type[Request]] = [Request]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        found |= {told.flag_of(name): name for name, told in options_of(kind).items()}
    return found
