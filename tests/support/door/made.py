"""Requests as bytes, and their answers: the vocabulary of the table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from api.problems import phrase
from domino_tune.requests.problems import type_of
from tests.support.door.exchange import Part

JSON: Final = "application/json"
TUNE: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "tp": 4, "seq_length": 1024, "micro_batch_size": 4,
}  # fmt: skip
LAYOUTS: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "seq_length": 1024, "gpus": 8,
    "global_batch_size": 16,
}  # fmt: skip
SCALE: Final = {k: v for k, v in LAYOUTS.items() if k != "gpus"} | {"sweep": "gpus=8,16"}
MIB: Final = 1 << 20


class Case(NamedTuple):
    """A request, and its answer: status, place in the docs of problems (none: no problem), the
    places of all faults, words of the detail; ``late``: answered by a deadline."""

    parts: Sequence[Part]
    status: int
    type: str
    at: tuple[str, ...] = ()
    said: str = ""
    late: bool = False


class Row(NamedTuple):
    """A request; and, if they differ from its group's: places of faults and the type of its problem
    (TYPES), separated by spaces, and words of the detail.
    """

    parts: Sequence[Part]
    told: str = ""
    said: str = ""


TYPES: Final = frozenset({"bad-input", "bad-profile", "bad-plan-file", "infeasible-plan"})
"""Types that are not named after their status."""


def cases(
    status: int, rows: Mapping[str, Sequence[Part] | Row], *, at: str = "", late: bool = False
) -> dict[str, Case]:
    """A group of requests that are answered with ``status``."""
    made = {}
    for name, given in rows.items():
        row = given if isinstance(given, Row) else Row(given)
        words = (row.told or at).split()
        known = type_of(phrase(status)).partition("#")[2] if status >= 400 else ""
        kind = next((word for word in words if word in TYPES), known)
        places = tuple(word for word in words if word not in TYPES)
        made[name] = Case(row.parts, status, kind, places, row.said, late)
    return made


def refused(
    path: str,
    base: Mapping[str, Any],
    rows: Mapping[str, tuple[Mapping[str, Any], *tuple[str, ...]]],
) -> dict[str, Case]:
    """Return bodies with changed fields, which are refused: name -> (fields, the rest of a Row)."""
    return cases(422, {
        name: Row(ask(path, base, **changed), *told) for name, (changed, *told) in rows.items()
    })  # fmt: skip


def send(
    method: str, path: str, body: bytes | None = None, kind: str = JSON, **headers: str
) -> bytes:
    """Return a whole request; underscores in names of headers are sent as hyphens."""
    named: dict[str, str] = {"Host": "127.0.0.1"}
    if body is not None:
        named |= {"Content-Type": kind, "Content-Length": str(len(body))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in named.items() if v), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


def get(path: str, **headers: str) -> list[Part]:
    """A GET."""
    return [send("GET", path, None, JSON, **headers)]


def post(body: bytes, path: str = "/v1/tunes", **headers: str) -> list[Part]:
    """A POST of a body."""
    return [send("POST", path, body, **headers)]


def put(body: bytes, name: str = "mine") -> list[Part]:
    """A profile."""
    return [send("PUT", f"/v1/profiles/{name}", body)]


def ask(path: str, base: Mapping[str, Any], **changed: Any) -> list[Part]:
    """A POST of a body with other fields."""
    return post(json.dumps({**base, **changed}).encode(), f"/v1/{path}")


def without(path: str, base: Mapping[str, Any], *names: str) -> list[Part]:
    """A POST of a body that lacks fields."""
    return ask(path, {name: value for name, value in base.items() if name not in names})


def model(config: Any, name: str = "mine") -> list[Part]:
    """A config.json, or bytes, as a model."""
    body = config if isinstance(config, bytes) else json.dumps(config).encode()
    return post(body, f"/v1/models?name={name}")


def chunked(chunks: Iterable[bytes]) -> list[Part]:
    """A POST in chunks."""
    head = send("POST", "/v1/tunes", Transfer_Encoding="chunked", Content_Type=JSON)
    return [head, *(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks), b"0\r\n\r\n"]


def drops(drop: bytes, count: int) -> list[Part]:
    """Return the same part repeatedly, with pauses."""
    return [part for _ in range(count) for part in (drop, 0.3)]


def deep(opening: bytes, closing: bytes, depth: int) -> bytes:
    """A tune with a value nested ``depth`` deep."""
    return b'{"model": ' + opening * depth + b"1" + closing * depth + b"}"


def number(text: str, path: str = "/v1/tunes") -> list[Part]:
    """A tune whose tp is written as ``text``."""
    return post(json.dumps(TUNE | {"tp": 0}).replace('"tp": 0', f'"tp": {text}').encode(), path)
