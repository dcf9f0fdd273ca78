"""Every block of docs/python.md runs for real, in their order, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.python_docs import PAGE, page_with, printed


def test_every_block_prints_what_the_page_shows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert page_with(PAGE, printed(PAGE, tmp_path)) == PAGE.read_text("utf-8")
