"""Bodies of requests: limited in size while they arrive, then parsed strictly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import anyio
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from api.problems import MOST_FAULTS, Fault, ProblemError, bad_body, pointer
from api.strict_json import count_values, read_json

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
