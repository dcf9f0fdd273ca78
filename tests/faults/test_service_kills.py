"""The short form of scripts/faults: a real service is killed, and loses nothing it acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kills import PLAYS
from tests.postgres import running_postgres


@pytest.mark.parametrize(
    ("what", "times"),
    [("pool worker", 3), ("API", 3), ("Dask worker", 2), ("API right after 202", 2)],
)
def test_nothing_acknowledged_is_lost(tmp_path: Path, what: str, times: int) -> None:
    kept = PLAYS[what](tmp_path, f"sqlite:///{tmp_path}/service.db", times, 1)
    assert (kept.lost, kept.unequal) == ([], [])
    assert kept.jobs >= times


def test_nothing_acknowledged_is_lost_on_postgresql(tmp_path: Path) -> None:
    with running_postgres() as server:
        kept = PLAYS["API"](tmp_path, server.new_database(), 2, 2)
    assert (kept.lost, kept.unequal) == ([], [])
    assert kept.jobs >= 3
