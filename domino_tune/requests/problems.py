"""Errors as plain problems (RFC 9457): of a request that is refused, of a job that failed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Final

from domino_tune import requests
from domino_tune.base.errors import meaning_of
from domino_tune.requests.options import option_of
from simulator.errors import DominoTuneError, InfeasiblePlanError

_FLAG: Final = re.compile(r"--[a-z][a-z0-9-]*")


def plain_problem(error: BaseException) -> dict[str, Any]:
    """What went wrong, fields under their names in bodies; of a bug no more than that it is one.

    An InfeasiblePlanError has its ``reason``, too.
    """
    meaning = meaning_of(error)
    known = isinstance(error, DominoTuneError)
    problem = {
        "type": f"urn:domino-tune:{meaning.title.lower().replace(' ', '-')}",
        "title": meaning.title,
        "status": meaning.http_status,
        "detail": in_wire_words(str(error)) if known else "A bug; the server's log tells more.",
    }
    if isinstance(error, InfeasiblePlanError):
        problem["reason"] = error.reason
    return problem


def in_wire_words(text: str) -> str:
    """``text`` with options of the command line under the names they have in bodies."""
    return _FLAG.sub(lambda match: _fields_by_flag().get(match[0], match[0]), text)


def fields_named(text: str) -> tuple[str, ...]:
    """Fields whose options ``text`` names, in its order."""
    named = dict.fromkeys(_fields_by_flag().get(flag, "") for flag in _FLAG.findall(text))
    return tuple(name for name in named if name)


@cache
def _fields_by_flag() -> Mapping[str, str]:
    found: dict[str, str] = {}
    kinds: list[type[Any]] = [requests.Request]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        for item in fields(kind):
            if flag := option_of(item).flag:
                found[flag] = item.name
    return found
