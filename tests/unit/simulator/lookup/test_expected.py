"""Expected errors of borrowed numbers: relative, small, and each with a source of its own."""

from __future__ import annotations

import pytest

from simulator.lookup import expected
from simulator.lookup.expected import EXPECTED, Expected


@pytest.mark.parametrize("item", EXPECTED, ids=lambda item: item.what)
def test_an_expected_error_is_a_share_of_the_time(item: Expected) -> None:
    assert 0 < item.error < 0.5
    assert item.source
    assert item.kind in ("measured", "assumed")


def test_all_of_them_are_listed_once() -> None:
    named = [item for item in vars(expected).values() if isinstance(item, Expected)]
    assert sorted(named) == sorted(EXPECTED)
    assert len({item.what for item in EXPECTED}) == len(EXPECTED)
