"""Fixtures of fault tests."""

from __future__ import annotations

from tests.domino_tune.conftest import run

__all__ = ["run"]
