"""Clocks of steps."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from domino_tune.runtime.clock import NoClock


def test_a_clock_that_takes_no_moments() -> None:
    clock = NoClock()
    clock.start()
    moment = clock.tick()
    clock.stop()
    assert moment == clock.at_ns(moment) == 0
