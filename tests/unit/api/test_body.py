"""Bodies: put together as they come, parsed beside the loop. What is refused has its rows in the
table of the door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.requests import Request

from api.body import JSON_TYPES, parse_body, parse_object, read_body
from api.intake import Intake
from api.problems import ProblemError


class Names(BaseModel):
    names: list[str]


def test_large_bodies_are_parsed_beside_the_loop() -> None:
    names = ",".join(['"' + "n" * 40_000 + '"'] * 3)
    made = asyncio.run(parse_body(Names, f'{{"names": [{names}]}}'.encode(), Intake().bodies))
    assert len(made.names) == 3


def test_any_object_is_an_object() -> None:
    made = asyncio.run(parse_object(b'{"model_type": "gpt2", "x": [1]}', Intake().bodies))
    assert made["x"] == [1]


def reading(chunks: list[bytes]) -> tuple[bytes, list[bytes]]:
    """``read_body`` of a request whose body comes in ``chunks``, and the parts that were taken; a
    part with a semicolon is refused."""
    taken: list[bytes] = []

    def take(part: bytes) -> None:
        if b";" in part:
            raise ProblemError(429, f"Refused after {len(taken)}.")
        taken.append(part)

    async def messages() -> AsyncGenerator[dict[str, Any], None]:
        for index, chunk in enumerate(chunks):
            yield {"type": "http.request", "body": chunk, "more_body": index < len(chunks) - 1}
        yield {"type": "http.disconnect"}

    async def read() -> bytes:
        stream = messages()
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        request = Request(scope, lambda: anext(stream))
        try:
            return await read_body(
                request, cap_bytes=100, deadline_s=60, media_types=JSON_TYPES, take=take,
                pace=Intake().pace,
            )  # fmt: skip
        finally:
            await stream.aclose()

    return asyncio.run(read()), taken


def test_a_body_is_put_together() -> None:
    assert reading([b"{", b"", b"}"])[0] == b"{}"
    assert reading([b"x" * 50, b"y" * 50]) == (b"x" * 50 + b"y" * 50, [b"x" * 50, b"y" * 50])


@pytest.mark.parametrize(
    ("chunks", "status"), [([b"x" * 50, b"x" * 51], 413), ([b"x" * 101], 413), ([], 400)]
)
def test_a_body_is_refused(chunks: list[bytes], status: int) -> None:
    with pytest.raises(ProblemError) as caught:
        reading(chunks)
    assert caught.value.status == status


def test_what_is_refused_on_its_way_is_read_to_its_end_all_the_same() -> None:
    with pytest.raises(ProblemError, match="Refused after 1"):
        reading([b"x", b";", b"y"])
    with pytest.raises(ProblemError, match="at most 100 bytes"):
        reading([b";" * 60, b"x" * 60])
