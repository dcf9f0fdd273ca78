"""Many owners of one database, and a disk whose every call fails in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.domino_tune.service import failing
from tests.real.domino_tune.service.owners import work_together
from tests.support.postgres import Postgres


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_eight_owners_finish_eight_hundred_jobs_once(
    tmp_path: Path, postgres: Postgres, kind: str
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else postgres.new_database()
    worked = work_together(url, owners=8, each=100)
    assert len(worked.submitted) == 800
    assert sorted(worked.finished) == sorted(worked.submitted)


@pytest.mark.parametrize("fault", failing.FAULTS)
def test_every_call_of_the_disk_fails_in_turn(tmp_path: Path, fault: str) -> None:
    library = failing.make_library(tmp_path)
    counts = failing.fail_each_call(library, tmp_path, *failing.FAULTS[fault])
    assert counts["failed"] > 200
    assert counts["refused"] > counts["failed"] / 2
