"""Exports are those of tests/unit/golden/exports.jsonl: each change of them is written down."""

from __future__ import annotations

from tests.support.exports import FILE, lines


def test_exports_are_as_they_were() -> None:
    """Where they change as they should: `python -m tests.support.exports`."""
    assert [*lines()] == FILE.read_text("utf-8").splitlines(keepends=True)
