"""Python in documents: every block runs for real, and prints what docs/python.md shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.real.python_docs import PAGE, page_with, printed, shown

FEW = 2


def test_the_first_blocks_print_what_the_page_shows(tmp_path: Path) -> None:
    assert printed(PAGE, tmp_path, FEW) == shown(FEW)


@pytest.mark.thorough
def test_every_block_prints_what_the_page_shows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert page_with(printed(PAGE, tmp_path)) == PAGE.read_text("utf-8")


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (out,) = printed(REPOSITORY / "README.md", tmp_path)
    assert "llama2-7b on h100-dgx, tp 8" in out
    assert "[4 rows x 17 columns]" in out
