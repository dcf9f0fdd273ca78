"""A writer of evidence that is killed: the file holds all that it said it had written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.support.processes import started
from tests.unit.domino_tune.store.test_evidence import records

WRITER = """
import sys
from pathlib import Path
from domino_tune.store.evidence import Evidence
from tests.unit.domino_tune.store.test_evidence import PAIR, QUESTION
with Evidence(Path(sys.argv[1]), QUESTION) as evidence:
    while True:
        evidence.append(PAIR)
        print(len(evidence.records), flush=True)
"""


def test_killed_while_writing_it_holds_all_it_said(tmp_path: Path) -> None:
    path, said = tmp_path / "evidence.jsonl", 0
    command = [sys.executable, "-c", WRITER, str(path)]
    for _ in range(3):
        with started(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(5):
                said = int(writer.stdout.readline())
            writer.kill()
            rest = writer.communicate()[0].split()
        said = int(rest[-1]) if rest else said
        assert len(records(path)) >= said
    assert said >= 15
