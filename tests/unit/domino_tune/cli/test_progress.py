"""Lines of progress where no terminal is: one in ten seconds."""

from __future__ import annotations

import itertools

from domino_tune.base.progress import RECOUNT, SearchPace
from domino_tune.cli.progress import EVERY_S, Lines


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_comes_at_least_every_ten_seconds_whatever_the_search_says() -> None:
    clock, written = Clock(), list[str]()
    lines = Lines(written.append, clock)
    lines("104 layouts that may fit")
    assert not written
    for _ in range(60):
        clock.now_s += 1
        lines.tick()
    assert written[0] == f"{EVERY_S:.0f} s: 104 layouts that may fit"
    told_s = [int(text.split(" s:")[0]) for text in written]
    assert max(b - a for a, b in itertools.pairwise(told_s)) <= EVERY_S + 1 <= 10
    assert 60 - told_s[-1] <= EVERY_S
    lines("2 plans done")
    clock.now_s += EVERY_S
    lines("3 plans done")
    assert written[-1].endswith("3 plans done")


def test_how_far_a_search_is_and_how_long_it_takes() -> None:
    clock = Clock()
    pace = SearchPace(clock)
    clock.now_s += 3
    assert pace.step(1, None) == "1 plan done, 3 s each"
    unknown = pace.recounts
    assert unknown
    clock.now_s += 3
    assert pace.step(2, 100) == "2 plans done, at most 100 left, up to 5 minutes more"
    known = pace.recounts
    assert not known
    clock.now_s += 3
    assert pace.step(3, None) == "3 plans done, at most 99 left, up to 5 minutes more"
    for done in range(4, RECOUNT + 3):
        pace.step(done, None)
    old = pace.recounts
    assert old
    assert pace.step(30, 2) == "30 plans done, at most 2 left"
