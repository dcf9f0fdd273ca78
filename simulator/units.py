"""Conversions between the units of the engines and those that users read."""

from __future__ import annotations

from typing import Final

MS_PER_NS: Final = 1e-6
S_PER_NS: Final = 1e-9
GIB: Final = 1 << 30
"""Bytes of one GiB."""
