"""Bodies of requests: limited in size while they arrive, then parsed strictly."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

import anyio
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from api.problems import MOST_FAULTS, WANTED, Fault, ProblemError, bad_body, pointer

# Strict JSON, with a pointer to everything that is refused ----------------------------------------
# Refused: what is not JSON, bad UTF-8, duplicate keys, NaN, infinities, numbers too large to be
# finite, integers of too many digits, NUL and lone surrogates in text, and deep nesting. Values are
# counted before they are parsed.

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
_PATTERN: Final = re.compile(r"String should match pattern '(.*)'")
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
        if len(place) >= DEEPEST and isinstance(found, dict | list):
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


# Bodies of requests -------------------------------------------------------------------------------

JSON_TYPES: Final = ("application/json",)
TABLE_TYPES: Final = ("text/plain", "text/csv", "application/octet-stream")
_CHARSET: Final = re.compile(r'charset="?([^";\s]*)"?', re.ASCII | re.IGNORECASE)
SMALL_BYTES: Final = 64 << 10
"""Bodies up to this size are parsed in the event loop."""
Kind = TypeVar("Kind", bound=BaseModel)
Made = TypeVar("Made")


async def read_body(request: Request, *, cap_bytes: int, media_types: Iterable[str]) -> bytes:
    """Return the body as it was sent.

    Raise ProblemError: 413 above ``cap_bytes``, without storing more than that; 415 for another
    media type, another charset or a content coding.
    """
    _check_kind(request, tuple(media_types))
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > cap_bytes:
        raise _too_large(cap_bytes)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > cap_bytes:
                raise _too_large(cap_bytes)
            chunks.append(chunk)
    except ClientDisconnect:
        raise ProblemError(400, "The connection ended before the body did.") from None
    return b"".join(chunks)


def _too_large(cap_bytes: int) -> ProblemError:
    return ProblemError(413, f"The body may have at most {cap_bytes:,} bytes; send less.")


def _check_kind(request: Request, media_types: tuple[str, ...]) -> None:
    codings = ",".join(request.headers.getlist("content-encoding")).lower()
    if any(coding.strip() not in ("", "identity") for coding in codings.split(",")):
        raise ProblemError(
            415,
            "Bodies are taken as they are: leave out Content-Encoding.",
            headers={"Accept-Encoding": "identity"},
        )
    given = request.headers.getlist("content-type")
    kind, _, rest = (given[0] if len(given) == 1 else "").partition(";")
    if kind.strip().lower() not in media_types:
        raise ProblemError(
            415,
            f"The body must be {' or '.join(media_types)}: say so in one Content-Type.",
            headers={"Accept": ", ".join(media_types)},
        )
    charset = _CHARSET.search(rest)
    if charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise ProblemError(415, "The body's charset must be UTF-8.")


async def parsed(
    read: Callable[[bytes], Made], data: bytes, most_values: int, turn: anyio.CapacityLimiter
) -> Made:
    """Return ``read(data)``; where that is large, in a thread when it is its ``turn``: as Python
    objects, values take a hundred times their bytes. Raise ProblemError 422 above ``most_values``.
    """
    if count_values(data) > most_values:
        raise bad_body(f"The body may hold at most {most_values:,} values; send fewer.")
    if len(data) <= SMALL_BYTES:
        return read(data)
    return await anyio.to_thread.run_sync(read, data, limiter=turn)


def parse(kind: type[Kind], data: bytes) -> Kind:
    """Return ``data`` as ``kind``. Raise ProblemError: 400 where it is not JSON, 422 with pointers
    for other faults."""
    return validated(kind, data, read_object(data))


def validated(kind: type[Kind], data: bytes, plain: dict[str, Any]) -> Kind:
    """Return ``data``, whose JSON is ``plain``, as ``kind``. Raise ProblemError 422."""
    _check_keys(kind, plain)
    try:
        return kind.model_validate_json(data.removeprefix(b"\xef\xbb\xbf"))
    except ValidationError as error:
        raise _refused(error, plain) from None


def read_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object with any keys. Raise ProblemError as ``parse`` does."""
    if not data:
        raise bad_body("The body is empty; send a JSON object.", status=400)
    plain = read_json(data)
    if not isinstance(plain, dict):
        raise bad_body("The body must be a JSON object.")
    return plain


def _check_keys(kind: type[BaseModel], plain: dict[str, Any]) -> None:
    """Refuse unknown keys at the top first: a body may hold thousands of them."""
    if kind.model_config.get("extra") != "forbid":
        return
    known = {item.alias or name for name, item in kind.model_fields.items()}
    if len(plain) <= len(known):
        return
    unknown = [key for key in plain if key not in known][:MOST_FAULTS]
    raise bad_body(
        f"Unknown keys; known: {', '.join(sorted(known))}.",
        [Fault(pointer=pointer((key,)), detail="This key is not known.") for key in unknown],
    )


def _refused(error: ValidationError, plain: Any) -> ProblemError:
    found = [
        (tuple(_place(plain, item["loc"])), sentence(item["msg"]))
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    # Where a list or a text is taken, a fault in the list comes with one for being no text.
    around = {place[:length] for place, _ in found for length in range(len(place))}
    inner = [(place, detail) for place, detail in found if place not in around]
    faults = [Fault(pointer=pointer(place), detail=detail) for place, detail in inner[:MOST_FAULTS]]
    what = "is 1 fault" if len(inner) == 1 else f"are {len(inner):,} faults"
    return bad_body(
        f"There {what} in the body, first at {faults[0].pointer}: {faults[0].detail}", faults
    )


def sentence(message: str) -> str:
    """Return a message of pydantic as a sentence."""
    if message == "Field required":
        return "It is missing; give it."
    if pattern := _PATTERN.fullmatch(message):
        return WANTED[pattern[1]]
    text = message.removeprefix("Value error, ")
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _place(plain: Any, location: tuple[str | int, ...]) -> list[str | int]:
    """Return the place of ``location`` in the body, without pydantic's names for alternatives."""
    place: list[str | int] = []
    here = plain
    for depth, part in enumerate(location):
        last = depth == len(location) - 1
        if isinstance(here, dict) and isinstance(part, str) and (part in here or last):
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            continue
        place.append(part)
    return place
