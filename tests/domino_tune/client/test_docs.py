"""docs/client.md: its Python runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.domino_tune.serving import environment, served


def test_the_python_runs(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "client.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with served(tmp_path) as running:
        code = code.replace("http://127.0.0.1:8000", running.url)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=environment(tmp_path), capture_output=True, text=True, timeout=900,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^domino .* \d\.\d+$", done.stdout, re.MULTILINE)
