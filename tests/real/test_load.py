"""What loads measure: how memory grows."""

from __future__ import annotations

import pytest

from tests.support.load.loads import growth


def test_growth_ignores_the_warm_up() -> None:
    assert growth([1, 50, 100, 100, 100, 100, 100, 100, 100, 104]) == pytest.approx(0.04)
    assert growth([100]) == 0
