"""Tuples of numbers and words that are equal up to rounding."""

from __future__ import annotations

from typing import Any

import pytest


def near(*values: object) -> Any:
    """``values`` as a tuple that compares its numbers with ``pytest.approx``."""
    return tuple(
        pytest.approx(value) if isinstance(value, int | float) else value for value in values
    )
