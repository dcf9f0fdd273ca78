"""Bodies: put together as they come, parsed beside the loop, and refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import anyio
import pytest
from pydantic import BaseModel
from starlette.requests import Request

from api.body import JSON_TYPES, parse, parsed, read_body, read_object
from api.problems import ProblemError


class Names(BaseModel):
    names: list[str]


def done(data: bytes, most_values: int = 100) -> Any:
    async def run() -> Any:
        return await parsed(partial(parse, Names), data, most_values, anyio.CapacityLimiter(1))

    return asyncio.run(run())


def test_large_bodies_are_parsed_beside_the_loop() -> None:
    names = ",".join(['"' + "n" * 40_000 + '"'] * 3)
    assert len(done(f'{{"names": [{names}]}}'.encode()).names) == 3


def test_values_are_counted_before_they_are_parsed() -> None:
    with pytest.raises(ProblemError, match="at most 5 values"):
        done(b'{"names": [' + b'"a",' * 9, most_values=5)


def test_any_object_is_an_object() -> None:
    assert read_object(b'{"model_type": "gpt2", "x": [1]}')["x"] == [1]
    for bad, status in ((b"", 400), (b"[]", 422), (b"{", 400)):
        with pytest.raises(ProblemError) as caught:
            read_object(bad)
        assert caught.value.status == status


def reading(chunks: list[bytes]) -> bytes:
    """``read_body`` of a request whose body comes in ``chunks``."""

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
            return await read_body(request, cap_bytes=100, media_types=JSON_TYPES)
        finally:
            await stream.aclose()

    return asyncio.run(read())


def test_a_body_is_put_together() -> None:
    assert reading([b"{", b"", b"}"]) == b"{}"
    assert reading([b"x" * 50, b"y" * 50]) == b"x" * 50 + b"y" * 50


@pytest.mark.parametrize(
    ("chunks", "status"), [([b"x" * 50, b"x" * 51], 413), ([b"x" * 101], 413), ([], 400)]
)
def test_a_body_is_refused(chunks: list[bytes], status: int) -> None:
    with pytest.raises(ProblemError) as caught:
        reading(chunks)
    assert caught.value.status == status
