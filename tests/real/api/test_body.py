"""Bodies: read as they stream in, parsed into wire types, refused with pointers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from api.body import JSON_TYPES, parse, parse_body, parse_object, read_body
from api.intake import Intake
from api.problems import ProblemError


class Inner(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    size: int | float
    names: list[str] = Field(default_factory=list, max_length=3)


class Outer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    tp: int = Field(ge=1, le=8)
    inner: Inner | None = None


def refused(data: bytes) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        parse(Outer, data)
    return caught.value


@pytest.mark.parametrize(
    ("text", "pointers"),
    [
        ("{}", ["#/tp"]),
        ('{"tp": 0}', ["#/tp"]),
        ('{"tp": 9}', ["#/tp"]),
        ('{"tp": "1"}', ["#/tp"]),
        ('{"tp": 1.0}', ["#/tp"]),
        ('{"tp": true}', ["#/tp"]),
        ('{"tp": null}', ["#/tp"]),
        ('{"tp": 1, "TP": 2}', ["#/TP"]),
        ('{"tp": 1, "inner": {"size": "big"}}', ["#/inner/size", "#/inner/size"]),
        ('{"tp": 1, "inner": {"size": 1, "names": ["a", 2]}}', ["#/inner/names/1"]),
        ('{"tp": 1, "inner": {"size": 1, "names": ["a", "b", "c", "d"]}}', ["#/inner/names"]),
        ('{"tp": 1, "inner": {"size": 1, "a~/é": 1}}', ["#/inner/a~0~1%C3%A9"]),
        ("[]", ["#"]),
        ('"text"', ["#"]),
        ("null", ["#"]),
    ],
)
def test_every_fault_has_its_pointer(text: str, pointers: list[str]) -> None:
    error = refused(text.encode())
    assert error.status == 422
    assert [fault.pointer for fault in error.faults] == pointers


def test_values_are_not_echoed() -> None:
    error = refused(b'{"tp": "dt_secret", "inner": {"size": "dt_secret"}}')
    assert "secret" not in error.problem().model_dump_json()


def test_a_hundred_thousand_unknown_keys_are_told_in_brief() -> None:
    text = "{" + ",".join(f'"k{n}":0' for n in range(100_000)) + "}"
    error = refused(text.encode())
    assert error.status == 422
    assert len(error.problem().to_json()) < 4_000


def test_a_long_key_is_cut() -> None:
    error = refused(b'{"tp": 1, "' + b"k" * 50_000 + b'": 1}')
    assert len(error.problem().to_json()) < 2_000


def test_large_bodies_are_parsed_beside_the_loop() -> None:
    names = ",".join(['"' + "n" * 40_000 + '"'] * 3)
    data = f'{{"tp": 2, "inner": {{"size": 1.5, "names": [{names}]}}}}'.encode()
    made = asyncio.run(parse_body(Outer, data, Intake().bodies))
    assert made.inner is not None
    assert len(made.inner.names) == 3


def test_any_object_is_an_object() -> None:
    turn = Intake().bodies
    assert asyncio.run(parse_object(b'{"model_type": "gpt2", "x": [1]}', turn))["x"] == [1]
    with pytest.raises(ProblemError, match="object"):
        asyncio.run(parse_object(b"[]", turn))


# Reading ------------------------------------------------------------------------------------------


def reading(chunks: list[bytes], pause_s: float = 0, **headers: str) -> bytes:
    """``read_body`` of a request whose body comes in ``chunks``, with pauses between."""
    return taken_while_reading(chunks, pause_s, **headers)[0]


def taken_while_reading(
    chunks: list[bytes], pause_s: float = 0, **headers: str
) -> tuple[bytes, list[bytes]]:
    """The same, and the parts that were taken; a part with a semicolon is refused."""
    taken: list[bytes] = []

    def take(part: bytes) -> None:
        if b";" in part:
            raise ProblemError(429, f"Refused after {len(taken)}.")
        taken.append(part)

    async def messages() -> AsyncGenerator[dict[str, Any], None]:
        for index, chunk in enumerate(chunks):
            await asyncio.sleep(pause_s)
            more = index < len(chunks) - 1
            yield {"type": "http.request", "body": chunk, "more_body": more}
        yield {"type": "http.disconnect"}

    async def read() -> bytes:
        stream = messages()
        named = {"content_type": "application/json", **headers}
        raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in named.items()]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": raw}
        request = Request(scope, lambda: anext(stream))
        try:
            return await read_body(
                request,
                cap_bytes=100,
                deadline_s=0.2,
                media_types=JSON_TYPES,
                take=take,
                pace=Intake().pace,
            )
        finally:
            await stream.aclose()

    return asyncio.run(read()), taken


def test_a_body_is_put_together() -> None:
    assert reading([b"{", b"", b"}"]) == b"{}"
    assert taken_while_reading([b"x" * 50, b"y" * 50]) == (
        b"x" * 50 + b"y" * 50, [b"x" * 50, b"y" * 50],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("chunks", "pause_s", "headers", "status"),
    [
        ([b"x" * 50, b"x" * 51], 0, {}, 413),
        ([b"x" * 101], 0, {}, 413),
        ([b"{}"], 0, {"content_length": "101"}, 413),
        ([b"{}"], 0, {"content_length": "9" * 400}, 413),
        ([b"{"] * 5, 0.1, {}, 408),
        ([b"{}"], 0, {"content_type": "text/plain"}, 415),
        ([b"{}"], 0, {"content_type": ""}, 415),
        ([b"{}"], 0, {"content_type": "application/json; charset=utf-16"}, 415),
        ([b"{}"], 0, {"content_encoding": "gzip"}, 415),
        ([b"{}"], 0, {"content_encoding": "identity, br"}, 415),
        ([], 0, {}, 400),
    ],
)
def test_a_body_is_refused(
    chunks: list[bytes], pause_s: float, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(ProblemError) as caught:
        reading(chunks, pause_s, **headers)
    assert caught.value.status == status


def test_what_is_refused_on_its_way_is_read_to_its_end_all_the_same() -> None:
    with pytest.raises(ProblemError, match="Refused after 1"):
        reading([b"x", b";", b"y"])
    with pytest.raises(ProblemError, match="at most 100 bytes"):
        reading([b";" * 60, b"x" * 60])


def test_charset_utf_8_is_taken() -> None:
    assert reading([b"{}"], content_type='Application/JSON; charset="UTF-8"') == b"{}"
    assert reading([b"{}"], content_encoding="identity") == b"{}"
