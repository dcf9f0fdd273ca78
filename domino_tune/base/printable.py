"""Text as it may be printed: what comes from a file must not command a terminal."""

from __future__ import annotations

import unicodedata
from typing import Final

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories: control, format (which holds those that reorder a line), separators …"""


def printable(text: str) -> str:
    """Return ``text`` with escapes, as Python writes them, for all that is not seen as itself; line
    breaks stay."""
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode()
        if one != "\n" and unicodedata.category(one) in _UNSEEN
        else one
        for one in text
    )
