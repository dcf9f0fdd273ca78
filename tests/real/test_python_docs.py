"""Python in documents: the tutorial and the first blocks of docs/python.md print what they show."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import REPOSITORY
from tests.support.python_docs import PAGE, TUTORIAL, printed, shown

FEW = 2


def test_the_first_blocks_print_what_the_page_shows(tmp_path: Path) -> None:
    assert printed(PAGE, tmp_path, FEW) == shown(PAGE, FEW)


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    assert printed(TUTORIAL, tmp_path) == shown(TUTORIAL)


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (out,) = printed(REPOSITORY / "README.md", tmp_path)
    assert "llama2-7b on h100-dgx, tp 8" in out
    assert "[4 rows x 18 columns]" in out
