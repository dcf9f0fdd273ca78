"""The version of the program: pyproject.toml states the same."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
