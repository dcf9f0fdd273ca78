"""Strict JSON, with a pointer to everything that is refused.

Refused: what is not JSON, bad UTF-8, duplicate keys, NaN, infinities, numbers too large to be
finite, integers of too many digits, NUL and lone surrogates in text, and deep nesting. Values are
counted before they are parsed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from api.problems import MOST_FAULTS, Fault, bad_body, pointer

DEEPEST: Final = 32
"""Greatest depth of objects and lists; plan files and profiles have fewer than ten levels."""
MOST_DIGITS: Final = 40
MOST_KEYS: Final = 10_000
"""Keys of a body that is not a profile."""
MOST_VALUES: Final = 50_000
"""Values of a body that is not a profile; a plan has up to 20,000 tokens a direction."""
MOST_PROFILE_VALUES: Final = 800_000
"""Values of a profile's file: some 20,000 rows in each of four sections."""
_KEY: Final = re.compile(rb'"\s*:')
_DOUBTFUL_TEXT: Final = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class _Refused:
    """Replaces a value that the body must not hold."""

    reason: str


class _Doubled(dict[str, Any]):
    """An object with a duplicate key; ``twice`` names it."""

    twice: str = ""


class _Reader:
    """Hooks of the JSON decoder that note whether a value must be refused."""

    def __init__(self) -> None:
        self.refused = False

    def constant(self, text: str) -> _Refused:
        self.refused = True
        return _Refused(f"{text} is no JSON; every number must be finite.")

    def floating(self, text: str) -> float | _Refused:
        value = float(text)
        if math.isfinite(value):
            return value
        self.refused = True
        return _Refused("The number is too large; every number must be finite.")

    def whole(self, text: str) -> int | _Refused:
        if len(text) <= MOST_DIGITS:
            return int(text)
        self.refused = True
        return _Refused(f"A whole number may have at most {MOST_DIGITS} digits.")

    def pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        self.refused = True
        seen: set[str] = set()
        doubled = _Doubled(found)
        doubled.twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return doubled


def count_values(part: bytes) -> int:
    """Return how many values may begin in a part of a body, without parsing it.

    Each value follows a comma or an opening bracket, or is the only one. Commas and brackets within
    text count too: no text here has thousands of them.
    """
    return part.count(b",") + part.count(b"[") + part.count(b"{")


def read_json(data: bytes, most_keys: int = MOST_KEYS) -> Any:
    """Return the JSON value in ``data``; skip a byte-order mark.

    Raise ProblemError: 400 if ``data`` is not JSON, 422 for every other fault.
    """
    if data.count(b":") > most_keys and any(islice(_KEY.finditer(data), most_keys, None)):
        raise bad_body(f"The body may hold at most {most_keys:,} keys.")
    reader = _Reader()
    try:
        value = json.loads(
            data.decode("utf-8-sig"), parse_constant=reader.constant, parse_float=reader.floating,
            parse_int=reader.whole, object_pairs_hook=reader.pairs,
        )  # fmt: skip
    except RecursionError:
        raise _too_deep(()) from None
    except UnicodeDecodeError as error:
        raise bad_body(
            f"The body is no UTF-8: byte {error.start} does not fit; encode it as UTF-8.",
            status=400,
        ) from None
    except json.JSONDecodeError as error:
        raise bad_body(
            f"The body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            status=400,
        ) from None
    nested = data.count(b"[") + data.count(b"{")
    if reader.refused or nested > DEEPEST or _DOUBTFUL_TEXT.search(data):
        _check(value)
    return value


def _check(value: Any) -> None:
    faults: list[Fault] = []
    for place, found in _walk(value):
        if len(place) > DEEPEST:
            raise _too_deep(place[:DEEPEST])
        reason = _reason(found)
        if reason:
            faults.append(Fault(pointer=pointer(place), detail=reason))
        if len(faults) == MOST_FAULTS:
            break
    if faults:
        raise bad_body(faults[0].detail, faults)


def check_texts(value: Any, longest: int) -> None:
    """Raise ProblemError 422 at the first text or key with more than ``longest`` characters."""
    for place, found in _walk(value):
        for text in (found, *place[-1:]):
            if isinstance(text, str) and len(text) > longest:
                raise bad_body(f"A text may have at most {longest:,} characters.", place=place)


def _reason(value: Any) -> str:
    """Return why ``value`` itself is refused, or nothing."""
    if isinstance(value, _Refused):
        return value.reason
    if isinstance(value, _Doubled):
        return f"The key {json.dumps(value.twice[:100])} stands twice; keep one."
    texts = value.keys() if isinstance(value, dict) else (value,)
    if any(isinstance(text, str) and not _is_text(text) for text in texts):
        return "Text may hold neither NUL nor half of a surrogate pair."
    return ""


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _walk(value: Any) -> Iterator[tuple[Place, Any]]:
    """Yield every value with its place, in order, without recursion, as Python limits its depth."""
    yield (), value
    open_ones: list[tuple[Place, Iterator[tuple[str | int, Any]]]] = []
    if isinstance(value, dict | list):
        open_ones.append(((), _inside(value)))
    while open_ones:
        place, items = open_ones[-1]
        for part, found in items:
            here = (*place, part)
            yield here, found
            if isinstance(found, dict | list):
                open_ones.append((here, _inside(found)))
                break
        else:
            open_ones.pop()


def _inside(value: Any) -> Iterator[tuple[str | int, Any]]:
    """Return the entries of an object or list, each with its key or index."""
    return iter(value.items() if isinstance(value, dict) else enumerate(value))


def _too_deep(place: Place) -> Exception:
    return bad_body(
        f"Objects and lists may stand at most {DEEPEST} deep within each other.", place=place
    )
