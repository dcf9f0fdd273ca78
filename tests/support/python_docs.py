"""Python blocks of pages and what they print.

``python -m tests.support.python_docs`` renews the pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Final

from tests.conftest import REPOSITORY
from tests.support.processes import PATIENCE_S

PAGE: Final = REPOSITORY / "docs" / "python.md"
TUTORIAL: Final = REPOSITORY / "docs" / "tutorial.md"
BLOCK: Final = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", re.S)
MARK: Final = "---- end of a block ----"


def printed(page: Path, folder: Path, most: int | None = None) -> list[str]:
    """Return what each block prints, or the first ``most``, run one after the other in ``folder``
    with a new home."""
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    blocks = [match["code"] for match in BLOCK.finditer(page.read_text("utf-8"))][:most]
    program = "".join(f"{code}\nprint({MARK!r})\n" for code in blocks)
    home = {"DOMINO_TUNE_HOME": str(folder / "home"), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=folder,
        env={**os.environ, **home}, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split(f"{MARK}\n")[:-1]


def shown(page: Path, most: int | None = None) -> list[str]:
    """Return what a page shows under its blocks, or under the first ``most``."""
    found = BLOCK.finditer(page.read_text("utf-8"))
    return [match["shown"] or "" for match in islice(found, most)]


def page_with(page: Path, outputs: list[str]) -> str:
    """Return a page with ``outputs`` under its blocks."""
    left = iter(outputs)

    def block(match: re.Match[str]) -> str:
        out = next(left)
        shown = f"\n```text\n{out}```\n" if out else ""
        return f"```python\n{match['code']}```\n{shown}"

    return BLOCK.sub(block, page.read_text("utf-8"))


if __name__ == "__main__":
    for page in (PAGE, TUTORIAL):
        with tempfile.TemporaryDirectory() as place:
            page.write_text(page_with(page, printed(page, Path(place))), "utf-8")
