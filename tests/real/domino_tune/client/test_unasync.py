"""scripts/unasync.py: the committed sync client is what it makes of the async one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

CLIENT = Path("domino_tune/client")


def test_the_sync_client_is_generated(tmp_path: Path) -> None:
    for name in ("scripts/unasync.py", CLIENT / "asynchronous.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    subprocess.run([sys.executable, tmp_path / "scripts" / "unasync.py"], check=True)
    made, committed = ((root / CLIENT / "sync.py").read_text() for root in (tmp_path, REPOSITORY))
    assert made == committed, "Run scripts/unasync.py."
    assert not {"async", "await", "asyncio"} & set(made.split())
