"""Where a user's own data lives."""

from __future__ import annotations

import os
from pathlib import Path


def home_dir() -> Path:
    """``$DOMINO_TUNE_HOME``, or ``~/.domino_tune``; it need not exist."""
    chosen = os.environ.get("DOMINO_TUNE_HOME")
    return Path(chosen) if chosen else Path.home() / ".domino_tune"
