"""Every load runs for seconds against a real service without errors. Times are not checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.load.loads import LOADS, Duration, run

BRIEF = Duration(each_s=1.0, mixed_s=6.0)


LATE = ("takes longer than", "did not answer in")
"""What a service says with 503 on a machine that is busy with other tests."""


@pytest.mark.parametrize("name", LOADS)
def test_load_runs_without_errors(name: str, tmp_path: Path) -> None:
    table = run(name, tmp_path, BRIEF)
    counts = {row[0]: row[2] for row in table.rows}
    late = [one for one in table.notes if "503" in one and any(said in one for said in LATE)]
    assert counts["errors"] == str(len(late)), table.notes
    assert counts["exit code after SIGTERM"] == "0"
