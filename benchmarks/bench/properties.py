"""The properties that tests check on a few cases, on as many as the project promises."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from benchmarks.bench.facts import REPOSITORY
from benchmarks.bench.verdict import SkippedError
from domino_tune.base.tables import Table

SCRIPT: Final = REPOSITORY / "scripts" / "bench_properties.py"


def properties() -> list[Table]:
    """Run the script, which prints its own tables; it needs ``tests/``, so it is not imported."""
    if not SCRIPT.is_file():
        raise SkippedError(f"{SCRIPT.name} is not in scripts/")
    sys.stdout.flush()
    subprocess.run([sys.executable, str(SCRIPT)], cwd=REPOSITORY, check=True)
    return []
