"""Bodies: put together as they come, parsed beside the loop, and refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.requests import Request

from api.body import (
    DEEPEST,
    JSON_TYPES,
    MOST_VALUES,
    count_values,
    parse,
    parsed,
    read_body,
    read_json,
    read_object,
)
from api.problems import ProblemError

# JSON is read strictly. What is refused has its rows in the table of the door ---------------------


@pytest.mark.parametrize("text", ["[1, 2]", "{}", '{"a": [{}, []], "b": ""}', "[[[[]]]]", "{,]"])
def test_no_fewer_values_are_counted_than_there_are(text: str) -> None:
    values = 0
    with contextlib.suppress(json.JSONDecodeError):
        waiting = [json.loads(text)]
        while waiting:
            one, values = waiting.pop(), values + 1
            waiting += (
                one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
            )
    assert values - 1 <= count_values(text.encode()) <= len(text)


def test_a_plan_has_fewer_values_than_a_body_may() -> None:
    tokens = [["F0.0"] * 20_000, ["B0.0"] * 20_000]
    assert count_values(json.dumps(tokens).encode()) < MOST_VALUES - 1000


def test_nesting_up_to_the_limit_is_read() -> None:
    for within in (b"", b'"x\\n"'):
        text = b"[" * DEEPEST + within + b"]" * DEEPEST
        assert json.dumps(read_json(text)).encode() == text
        with pytest.raises(ProblemError, match=f"at most {DEEPEST} deep"):
            read_json(b"[" + text + b"]")


def test_a_mark_and_pairs_of_surrogates_are_read() -> None:
    assert read_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**39), 10**39)
    | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(VALUES, st.booleans())
def test_whatever_python_writes_is_read_as_it_was(value: Any, ascii_only: bool) -> None:
    assert read_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProblemError):
        read_json(data)


# Bodies -------------------------------------------------------------------------------------------


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
