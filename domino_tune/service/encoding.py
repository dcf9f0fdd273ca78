"""Encode what is stored and sent: compact JSON, and digests."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

from simulator.errors import InputError


def json_text(value: Any) -> str:
    """Return compact JSON in ASCII, which every database accepts. Raise ValueError for NaN."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def json_bytes(value: Any) -> bytes:
    """Return the bytes of ``json_text``."""
    return json_text(value).encode()


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


# Names that users give to profiles, models, tokens and owners -------------------------------------
# Slugs, which are never paths.

_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def slug(kind: str, name: str) -> str:
    """Return ``name``. Raise InputError unless it is a slug; ``kind`` says what it names."""
    if not _SLUG.fullmatch(name) or ".." in name:
        raise InputError(
            f"A {kind}'s name is 1 to 64 small letters, digits, '.', '_' or '-', beginning with a "
            f"letter or digit, without '..'; got {name[:80]!r}."
        )
    return name
