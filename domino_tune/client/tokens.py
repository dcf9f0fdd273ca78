"""The token: where it is found, and kept so that nothing prints it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from domino_tune.base.errors import AccessError
from simulator.errors import InputError

VARIABLE: Final = "DOMINO_TUNE_TOKEN"
LONGEST: Final = 200
_PRINTABLE: Final = re.compile(r"[!-~]+")


class Token:
    """A secret that shows in no repr, log or traceback; ``header`` gives it away."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str, source: str) -> None:
        """Raises AccessError naming ``source``, never the secret, for what cannot be a token."""
        if len(secret) > LONGEST or not _PRINTABLE.fullmatch(secret):
            raise AccessError(f"{source} holds no token: one word of printable ASCII is wanted.")
        self._secret = secret

    def __repr__(self) -> str:
        return "Token(***)"

    def header(self) -> str:
        """Value of the Authorization header."""
        return f"Bearer {self._secret}"


def find_token(file: str | None = None) -> Token | None:
    """The token in ``file``, else in $DOMINO_TUNE_TOKEN, else none.

    Raises InputError for a file that cannot be read, AccessError for one that holds no token.
    """
    if file is not None:
        try:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.read(LONGEST + 2)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise InputError(
                f"The token file {file!r} cannot be read: {reason}; give another --token-file."
            ) from None
        return Token(text.strip(), f"The token file {file!r}")
    secret = os.environ.get(VARIABLE, "")
    return Token(secret.strip(), f"${VARIABLE}") if secret.strip() else None
