"""Parsed JSON becomes typed values strictly; an error says where, what was got, what is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from domino_tune.store.parsing import parse, without
from simulator.errors import InputError, ProfileError


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: int
    rate: float = 1.0
    kind: Literal["left", "right"] = "left"
    is_on: bool = False

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InputError(f"count must be ≥ 0, got {self.count}.")


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    maybe: Inner | None = None
    rows: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] | None = None
    labelled: Annotated[Inner, without("label")] | None = None


ONE = {"count": 1}


def parsed(value: Any, **options: bool) -> Outer:
    return parse(Outer, value, source="file", error=ProfileError, **options)


def test_every_part_becomes_its_type() -> None:
    value = {
        "inner": {"count": 1, "rate": 3, "kind": "right", "is_on": True},
        "rows": [ONE], "by_name": {"a": ONE}, "labelled": {"label": "one", **ONE},
    }  # fmt: skip
    one = Inner(count=1)
    assert parsed(value) == Outer(
        inner=Inner(count=1, rate=3.0, kind="right", is_on=True),
        rows=(one,), by_name={"a": one}, labelled=one,
    )  # fmt: skip
    assert isinstance(parsed(value).inner.rate, float)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"inner": {"count": True}}, "inner.count: must be a valid integer, got True."),
        ({"inner": {"count": "1"}}, "inner.count: must be a valid integer, got '1'."),
        ({"inner": {"count": 1.0}}, "inner.count: must be a valid integer, got 1.0."),
        ({"inner": {"count": None}}, "inner.count: must be a valid integer, got None."),
        ({"inner": {**ONE, "rate": True}}, "inner.rate: must be a valid number, got True."),
        ({"inner": {**ONE, "rate": math.inf}}, "inner.rate: must be a finite number, got inf."),
        ({"inner": {**ONE, "rate": math.nan}}, "inner.rate: must be a finite number, got nan."),
        ({"inner": {**ONE, "is_on": 1}}, "inner.is_on: must be a valid boolean, got 1."),
        ({"inner": {**ONE, "kind": "up"}}, "inner.kind: must be 'left' or 'right', got 'up'."),
        ({"inner": {"count": -1}}, "inner: count must be ≥ 0, got -1."),
        ({"inner": []}, "inner: must be an object, got []."),
        ({"inner": ONE, "rows": [ONE, 5]}, "rows[1]: must be an object, got 5."),
        ({"inner": ONE, "rows": ONE}, "rows: must be a valid array, got {'count': 1}."),
        ({"inner": {}}, "inner: the key 'count' is missing; add it."),
        ({}, "the key 'inner' is missing; add it."),
        (5, "must be an object, got 5."),
    ],
)
def test_anything_else_is_refused_with_place_and_reason(value: Any, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parsed(value)
    assert str(caught.value) == f"file: {message}"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("inner", {"inner": {"cuont": 1}}),
        ("maybe", {"inner": ONE, "maybe": {"cuont": 1}}),
        ("rows[1]", {"inner": ONE, "rows": [ONE, {"cuont": 1}]}),
        ("by_name.a", {"inner": ONE, "by_name": {"a": {"cuont": 1}}}),
        ("labelled", {"inner": ONE, "labelled": {"label": "", "cuont": 1}}),
    ],
)
def test_an_unknown_key_comes_with_its_near_miss(place: str, value: Any) -> None:
    with pytest.raises(ProfileError) as caught:
        parsed(value)
    assert str(caught.value) == (
        f"file: {place}: Unknown key 'cuont'. Did you mean 'count'? "
        "Known: count, is_on, kind, rate."
    )


def test_whole_requires_what_has_a_default() -> None:
    inner: dict[str, Any] = {"count": 1, "rate": 2.0, "kind": "left", "is_on": False}
    value = {"inner": inner, "maybe": None, "rows": [inner], "by_name": None, "labelled": None}
    assert parsed(value, whole=True) == parsed(value)
    del value["maybe"]
    with pytest.raises(ProfileError, match=r"^file: the key 'maybe' is missing"):
        parsed(value, whole=True)
    value |= {"maybe": None, "rows": [inner, ONE]}
    with pytest.raises(ProfileError, match=r"^file: rows\[1\]: the key 'rate' is missing"):
        parsed(value, whole=True)


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(InputError, match=r"^file: Invalid JSON"):
        parse(str, "\ud800", source="file", error=InputError)


def test_nesting_has_an_end() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InputError, match=r"^file is nested too deeply"):
        parse(Outer, value, source="file", error=InputError)


def test_a_list_ends_at_its_first_faulty_entry() -> None:
    """Each of these faults would take a kilobyte."""
    with pytest.raises(ProfileError, match=r"file: rows\[1\]: the key 'count' is missing"):
        parsed({"inner": ONE, "rows": [ONE, *[{}] * 100_000]})
