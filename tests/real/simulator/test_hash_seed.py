"""Orders and searches do not depend on Python's hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from domino_tune.search import SEARCHES
from simulator.greedy import order_of
from tests.conftest import REPOSITORY
from tests.unit.simulator.test_greedy import UNEVEN, case_of

SHOW_ORDER = """
from simulator.greedy import order_of
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


def test_a_plan_file_is_the_same(tmp_path: Path) -> None:
    words = (
        "tune", "--model", "gpt3-1.3b", "--profile", "h100-dgx", "--tp", "2", "--seq-length", "256",
        "--micro-batch-size", "2", "--search", "random", "--trials", "3", "--out",
    )  # fmt: skip
    written = []
    for seed in ("0", "1"):
        path = tmp_path / f"{seed}.json"
        subprocess.run(
            [sys.executable, "-m", "domino_tune", *words, str(path)], check=True,
            cwd=REPOSITORY, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True,
        )  # fmt: skip
        written.append(path.read_bytes())
    assert written[0] == written[1]
