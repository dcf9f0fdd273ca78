"""Only ranks import torch: whoever predicts need not install it."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys
sys.modules["torch"] = None
import domino_tune.cli.actions, domino_tune.verbs.report, domino_tune.verbs.tune
import domino_tune.verbs.profile, domino_tune.verbs.validate, domino_tune.verbs.whatif
"""


def test_every_verb_is_imported_where_torch_is_not_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
