"""Names that users give to profiles, models, tokens and owners: slugs, which are never paths."""

from __future__ import annotations

import re
from typing import Final

from simulator.errors import InputError

_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def slug(kind: str, name: str) -> str:
    """Return ``name``. Raise InputError unless it is a slug; ``kind`` says what it names."""
    if not _SLUG.fullmatch(name) or ".." in name:
        raise InputError(
            f"A {kind}'s name is 1 to 64 small letters, digits, '.', '_' or '-', beginning with a "
            f"letter or digit, without '..'; got {name[:80]!r}."
        )
    return name
