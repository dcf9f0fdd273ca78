"""Rivals against what was published of them; it simulates some hundred plans."""

from __future__ import annotations

from lab.bench.baselines import rivals


def test_rivals_are_within_the_limits_of_what_was_published() -> None:
    for table in rivals()[:3]:
        assert {row[-1] for row in table.rows} <= {"ok", "-"}
