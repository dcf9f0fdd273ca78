"""Orders and searches do not depend on Python's hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from domino_tune.search import SEARCHES
from simulator.ordering import order_of
from tests.conftest import REPOSITORY
from tests.unit.simulator.test_greedy import UNEVEN, case_of

SHOW_ORDER = """
from simulator.ordering import order_of
from tests.unit.simulator.test_greedy import UNEVEN, case_of
order = order_of(case_of(micro_batch_size=7), UNEVEN)
print(order.forward.to_strings(), order.backward.to_strings())
"""
SHOW_SEARCH = """
import sys
from domino_tune.search import SEARCHES, SearchOptions
from tests.unit.domino_tune.search.bumpy import BumpyProblem
result = SEARCHES[sys.argv[1]](BumpyProblem(), SearchOptions(trials=8, seed=1))
print([trial.index for trial in result.trials])
"""


def printed(script: str, *words: str) -> set[str]:
    """Return what ``script`` prints under several hash seeds."""
    return {
        subprocess.run(
            [sys.executable, "-c", script, *words], cwd=REPOSITORY, capture_output=True, text=True,
            check=True, env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        ).stdout
        for seed in ("0", "1", "77")
    }  # fmt: skip


def test_an_order_is_the_same() -> None:
    here = order_of(case_of(micro_batch_size=7), UNEVEN)
    assert printed(SHOW_ORDER) == {f"{here.forward.to_strings()} {here.backward.to_strings()}\n"}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_is_the_same(search: str) -> None:
    assert len(printed(SHOW_SEARCH, search)) == 1
