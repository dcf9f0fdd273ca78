"""A search of layouts that is interrupted at every step ends with the same answer."""

from __future__ import annotations

from dataclasses import replace

from domino_tune.search.layouts import LayoutSearch
from domino_tune.verbs.layouts import best_so_far, conclude, space_of
from tests.unit.domino_tune.verbs.test_layouts import SMALL, found


def test_an_interrupted_search_goes_on_to_the_same_answer() -> None:
    space, times = space_of(SMALL), [float("inf")]

    def stop() -> None:
        raise KeyboardInterrupt

    assert best_so_far(LayoutSearch(space.candidates)) is None
    while True:
        search = LayoutSearch(space.candidates, pause=stop)
        try:
            search.run()
        except KeyboardInterrupt:
            assert search.evaluations == len(times)
            best = best_so_far(search)
            assert best is not None
            times.append(best.iteration_ms)
        else:
            break
    assert times == sorted(times, reverse=True)
    assert replace(conclude(space, search), seconds=found().seconds) == found()
