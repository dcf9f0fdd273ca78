"""schemathesis against a service of its own, all phases: scripts/fuzz [EXAMPLES [SECONDS]]."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from domino_tune.service.sql.database import open_database
from domino_tune.service.tokens import TokenDesk
from tests.conftest import REPOSITORY
from tests.support.service import serving

UNFIT: Final = ("positive_data_acceptance",)
"""A body may fit its schema and still name a model that is not there: that is 422, too."""


CONFIGURATION: Final = """
[[operations]]
# A job that was just handed in has none of these yet.
include-path-regex = "/(plan|report|trace)$"
checks.ensure_resource_availability.enabled = false
"""


def fuzz(folder: Path, examples: int, seconds: int | None = None) -> tuple[int, str]:
    """(schemathesis' exit code, what it printed and what the service logged of bugs)."""
    database = open_database(f"sqlite:///{folder}/jobs.db")
    secret = TokenDesk(database).add("fuzz", "fuzz", "admin")
    database.close()
    given = {"tokens_required": True, "burst": 10**9, "most_queued": 10**9}
    with serving(folder, **given) as service:
        configuration = folder / "schemathesis.toml"
        configuration.write_text(CONFIGURATION)
        command = [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration), "run",
            f"{service.url}/openapi.json",
            "--header", f"Authorization: Bearer {secret}", "--mode", "all",
            "--phases", "examples,coverage,fuzzing,stateful",
            "--exclude-checks", ",".join(UNFIT), "--max-examples", str(examples),
            "--seed", "1", "--request-timeout", "60", "--continue-on-failure",
            *(["--max-time", str(seconds)] if seconds else []),
        ]  # fmt: skip
        environment = {
            **os.environ, "SCHEMATHESIS_HOOKS": "tests.long.api.fuzz_hooks",
            "PYTHONPATH": str(REPOSITORY),
        }  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=environment, check=False
        )
        bugs = [line for line in service.log.read_text().splitlines() if " ERROR " in line]
    return done.returncode or len(bugs), "\n".join([done.stdout, done.stderr[-2000:], *bugs])


def main() -> int:
    """The exit code."""
    examples = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as folder:
        code, text = fuzz(Path(folder), examples, seconds)
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
