"""JSON is read strictly. What is refused has its rows in the table of the door."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.problems import ProblemError
from api.strict_json import DEEPEST, MOST_VALUES, count_values, read_json


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
