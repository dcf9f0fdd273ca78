"""Encode what is stored and sent: compact JSON, and digests."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def json_text(value: Any) -> str:
    """Return compact JSON in ASCII, which every database accepts. Raise ValueError for NaN."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def json_bytes(value: Any) -> bytes:
    """Return the bytes of ``json_text``."""
    return json_text(value).encode()


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
