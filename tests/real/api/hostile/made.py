"""Requests as bytes: what the corpus is written with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tests.real.api.hostile.exchange import Part

JSON: Final = "application/json"
TUNE: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "tp": 4, "seq_length": 1024, "micro_batch_size": 4,
}  # fmt: skip
LAYOUTS: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "seq_length": 1024, "gpus": 8,
    "global_batch_size": 16,
}  # fmt: skip
MIB: Final = 1 << 20


def send(
    method: str, path: str, body: bytes | None = None, kind: str = JSON, **headers: str
) -> bytes:
    """A whole request; underscores in names of headers stand for hyphens."""
    named: dict[str, str] = {"Host": "127.0.0.1"}
    if body is not None:
        named |= {"Content-Type": kind, "Content-Length": str(len(body))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in named.items() if v), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


def post(body: bytes, path: str = "/v1/tunes", **headers: str) -> list[Part]:
    """A POST of a body."""
    return [send("POST", path, body, **headers)]


def tune(**changed: Any) -> list[Part]:
    """A tune with other fields; None leaves one out."""
    asked = {key: value for key, value in {**TUNE, **changed}.items() if value is not None}
    return post(json.dumps(asked).encode())


def layouts(**changed: Any) -> list[Part]:
    """A search of layouts with other fields."""
    return post(json.dumps({**LAYOUTS, **changed}).encode(), "/v1/layouts")


def scale(**changed: Any) -> list[Part]:
    """A search of layouts at several numbers of GPUs, with other fields."""
    asked = {name: value for name, value in LAYOUTS.items() if name != "gpus"}
    return post(json.dumps({**asked, "sweep": "gpus=8,16", **changed}).encode(), "/v1/scales")


def chunked(chunks: Iterable[bytes], path: str = "/v1/tunes") -> Iterator[bytes]:
    """A POST in chunks."""
    yield send("POST", path, kind=JSON, Transfer_Encoding="chunked", Content_Type=JSON)
    for chunk in chunks:
        yield f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n"
    yield b"0\r\n\r\n"


def drops(drop: bytes, count: int) -> list[Part]:
    """The same, again and again, with pauses."""
    return [part for _ in range(count) for part in (drop, 0.3)]


def deep(opening: bytes, closing: bytes, depth: int) -> bytes:
    """A tune with a value nested ``depth`` deep."""
    return b'{"model": ' + opening * depth + b"1" + closing * depth + b"}"


def number(text: str, path: str = "/v1/tunes") -> list[Part]:
    """A tune whose tp is written as ``text``."""
    return post(json.dumps(TUNE | {"tp": 0}).replace('"tp": 0', f'"tp": {text}').encode(), path)
