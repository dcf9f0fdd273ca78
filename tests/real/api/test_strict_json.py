"""JSON is read strictly, and what is refused is pointed at."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.bounds import MOST_TOKENS
from api.problems import MOST_FAULTS, ProblemError
from api.strict_json import DEEPEST, MOST_VALUES, count_values, read_json


def refused(data: bytes) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        read_json(data)
    return caught.value


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ('{"a": NaN}', "#/a"),
        ('{"a": [1, Infinity]}', "#/a/1"),
        ('{"a": {"b": -Infinity}}', "#/a/b"),
        ('{"a": 1e999}', "#/a"),
        ('{"a": -1e999}', "#/a"),
        ('{"a": ' + "9" * 5000 + "}", "#/a"),
        ('{"a": -' + "9" * 100 + "}", "#/a"),
        ('{"a": {"b": 1, "b": 1}}', "#/a"),
        ('{"b": 1, "b": 2}', "#"),
        (r'{"a/~": "\u0000"}', "#/a~1~0"),
        (r'{"a": "\ud800"}', "#/a"),
        (r'{"a": {"\udfff": 1}}', "#/a"),
        (r'{"a": ["\uD83D"]}', "#/a/0"),
    ],
)
def test_what_json_must_not_hold_is_pointed_at(text: str, pointer: str) -> None:
    error = refused(text.encode())
    assert error.status == 422
    assert [fault.pointer for fault in error.faults] == [pointer]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b'{"a": 1}}', b"[1,]", b'{"a": 01}', b'{"a": +1}', b"{'a': 1}", b'{"a": "\xff"}',
        b'{"a": "\x00"}', '{"a": 1}'.encode("utf-16"), b"\xed\xa0\x80", b"// no\n{}", b'{"a": .5}',
        b"nul", b'\xef\xbb\xbf\xef\xbb\xbf{}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_400(data: bytes) -> None:
    assert refused(data).status == 400


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_deep_nesting_is_refused_however_deep(opening: bytes) -> None:
    for depth in (DEEPEST + 2, 5_000, 400_000 // len(opening)):
        closing = {b"[": b"]", b'{"a":': b"}", b'[{"a":': b"}]"}[opening]
        error = refused(opening * depth + b"1" + closing * depth)
        assert error.status == 422
        assert "at most" in error.detail


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
    tokens = [["F0.0"] * MOST_TOKENS, ["B0.0"] * MOST_TOKENS]
    assert count_values(json.dumps(tokens).encode()) < MOST_VALUES - 1000


def test_the_first_faults_are_enough() -> None:
    error = refused(b"[" + b"NaN," * 1000 + b"1]")
    assert [fault.pointer for fault in error.faults] == [f"#/{n}" for n in range(MOST_FAULTS)]


def test_nesting_up_to_the_limit_is_read() -> None:
    text = b"[" * DEEPEST + b"]" * DEEPEST
    assert json.dumps(read_json(text)).encode() == text


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
