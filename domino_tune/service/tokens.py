"""Bearer tokens: shown once, stored as a hash, each with an owner and a scope."""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from sqlalchemy import Row, delete, select

from domino_tune.base.errors import ConflictError, NotFoundError
from domino_tune.service.encoding import sha256_hex
from domino_tune.service.names import slug
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.statements import insert, now_s
from domino_tune.service.sql.tables import tokens
from simulator.errors import unknown_name

Scope = Literal["read", "tune", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
"""Smallest first; each scope includes those before it."""
_SECRET: Final = re.compile(r"dt_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token without its secret. ``created_s`` in seconds since 1970."""

    name: str
    owner: str
    scope: Scope
    created_s: float

    def may(self, scope: Scope) -> bool:
        """Return whether the token's scope includes ``scope``."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


class TokenDesk:
    """Tokens in the database. All methods raise StorageError and UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, owner: str, scope: Scope) -> str:
        """Return a new token's secret, which is not stored and cannot be shown again.

        Raise InputError for an unknown scope, or a name or owner that is not a slug; ConflictError
        for a name that is taken.
        """
        if scope not in SCOPES:
            raise unknown_name("scope", scope, SCOPES)
        secret = "dt_" + secrets.token_urlsafe(32)
        with self._database.write() as connection:
            made = connection.execute(
                insert(connection, tokens)
                .values(
                    name=slug("token", name),
                    digest=_secret_digest(secret),
                    owner=slug("owner", owner),
                    scope=scope,
                    created_s=now_s(),
                )
                .on_conflict_do_nothing(index_elements=["name"])
                .returning(tokens.c.name)
            )
            if made.first() is None:
                raise ConflictError(
                    f"There is a token {name!r} already; revoke it, or choose another name."
                )
        return secret

    def list(self) -> tuple[Token, ...]:
        """Return all tokens by name."""
        with self._database.read() as connection:
            return tuple(sorted(map(_token, connection.execute(select(tokens))), key=_name))

    def revoke(self, name: str) -> None:
        """Delete the token. Raise NotFoundError if it does not exist."""
        with self._database.write() as connection:
            gone = connection.execute(delete(tokens).where(tokens.c.name == slug("token", name)))
            if gone.rowcount != 1:
                raise NotFoundError(f"There is no token {name!r}; `tokens list` shows all.")

    def find(self, secret: str) -> Token | None:
        """Return the token with this secret, or None."""
        if not _SECRET.fullmatch(secret):
            return None
        digest = _secret_digest(secret)
        with self._database.read() as connection:
            row = connection.execute(select(tokens).where(tokens.c.digest == digest)).one_or_none()
        if row is None or not hmac.compare_digest(row.digest, digest):
            return None
        return _token(row)


def _secret_digest(secret: str) -> str:
    # 256 random bits need neither salt nor a slow hash.
    return sha256_hex(secret.encode())


def _token(row: Row[Any]) -> Token:
    return Token(
        name=row.name, owner=row.owner, scope=cast(Scope, row.scope), created_s=row.created_s
    )


def _name(token: Token) -> str:
    return token.name
