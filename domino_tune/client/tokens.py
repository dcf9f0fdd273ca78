"""Tokens: found in a file or the environment, and kept so that nothing prints them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from domino_tune.base.errors import AccessError
from simulator.errors import InputError

VARIABLE: Final = "DOMINO_TUNE_TOKEN"
MAX_CHARACTERS: Final = 200
_PRINTABLE: Final = re.compile(r"[!-~]+")


class Token:
    """A secret that no repr, log or traceback shows; only ``header`` returns it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str, source: str) -> None:
        """Raise AccessError, which names ``source`` only, for a text that cannot be a token."""
        if len(secret) > MAX_CHARACTERS or not _PRINTABLE.fullmatch(secret):
            raise AccessError(f"{source} holds no token: one word of printable ASCII is wanted.")
        self._secret = secret

    def __repr__(self) -> str:
        return "Token(***)"

    def header(self) -> str:
        """Return the value of the Authorization header."""
        return f"Bearer {self._secret}"


def find_token(file: str | None = None) -> Token | None:
    """Return the token in ``file``, else the one in $DOMINO_TUNE_TOKEN, else None.

    Raise InputError for a file that cannot be read, AccessError for one that holds no token.
    """
    if file is not None:
        try:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.read(MAX_CHARACTERS + 2)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise InputError(
                f"The token file {file!r} cannot be read: {reason}; give another --token-file."
            ) from None
        return Token(text.strip(), f"The token file {file!r}")
    secret = os.environ.get(VARIABLE, "")
    return Token(secret.strip(), f"${VARIABLE}") if secret.strip() else None
