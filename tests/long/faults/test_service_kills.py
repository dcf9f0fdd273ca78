"""A short run of scripts/faults: a killed service loses nothing that it acknowledged, and what it
lacks it says. Times are not checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.long.faults.kills import SCENARIOS
from tests.long.faults.outages import OUTAGES
from tests.support.postgres import running_postgres


@pytest.mark.parametrize(
    ("what", "times"),
    [("API right after 202", 2), ("pool worker", 3), ("API", 3), ("Dask worker", 2)],
)
def test_nothing_acknowledged_is_lost(tmp_path: Path, what: str, times: int) -> None:
    audit = SCENARIOS[what](tmp_path, f"sqlite:///{tmp_path}/service.db", times, 1)
    assert (audit.lost, audit.unequal) == ([], [])
    assert audit.jobs >= times


def test_nothing_acknowledged_is_lost_on_postgresql(tmp_path: Path) -> None:
    with running_postgres() as server:
        audit = SCENARIOS["API"](tmp_path, server.new_database(), 2, 2)
    assert (audit.lost, audit.unequal) == ([], [])
    assert audit.jobs >= 3


@pytest.mark.parametrize("name", OUTAGES)
def test_an_outage_is_told_and_outlasted(tmp_path: Path, name: str) -> None:
    checks = OUTAGES[name][1](tmp_path)
    assert [one for one in checks if one.ok is False and not one.target.endswith(" s")] == []
