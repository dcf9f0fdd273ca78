"""Bearer tokens: shown once, stored as a hash, each with an owner and a scope."""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from sqlalchemy import Connection, delete, func, or_, select, update

from domino_tune.base.errors import AccessError, ConflictError, NotFoundError
from domino_tune.requests.problems import plain_problem
from domino_tune.requests.service import Scope
from domino_tune.service.encoding import json_text, sha256_hex, slug
from domino_tune.service.jobs import OPEN
from domino_tune.service.jobs.retention import DAY_S
from domino_tune.service.sql.database import Database
from domino_tune.service.sql.tables import insert, jobs, now_s, tokens

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
"""Smallest first; each scope includes those before it."""
USE_S: Final = 60.0
"""Time after which a use is noted again: the note is a write."""
_SECRET: Final = re.compile(r"dt_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, kw_only=True)
class StoredToken:
    """A token without its secret. Times in seconds since 1970; ``expires_s``: never if None,
    ``used_s``: the last use, to a minute."""

    name: str
    owner: str
    scope: Scope
    created_s: float
    expires_s: float | None = None
    used_s: float | None = None


class TokenDesk:
    """Tokens in the database. All methods raise StorageError and UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, owner: str, scope: Scope, days: float | None = None) -> str:
        """Return a new token's secret, which is not stored and cannot be shown again. The token
        expires after ``days``.

        Raise InputError for a name or owner that is not a slug, ConflictError for a name that is
        taken.
        """
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
                    expires_s=None if days is None else now_s() + days * DAY_S,
                )
                .on_conflict_do_nothing(index_elements=["name"])
                .returning(tokens.c.name)
            )
            if made.first() is None:
                raise ConflictError(
                    f"There is a token {name!r} already; revoke it, or choose another name."
                )
        return secret

    def list(self) -> tuple[StoredToken, ...]:
        """Return all tokens by name."""
        with self._database.read() as connection:
            found = map(_token, connection.execute(select(tokens)))
            return tuple(sorted(found, key=lambda one: one.name))

    def revoke(self, name: str) -> None:
        """Delete the token; with the last one of its owner, end the owner's jobs. Raise
        NotFoundError if it does not exist."""
        gone = delete(tokens).where(tokens.c.name == slug("token", name)).returning(tokens.c.owner)
        with self._database.write() as connection:
            owner = connection.scalar(gone)
            if owner is None:
                raise NotFoundError(f"There is no token {name!r}; `tokens list` shows all.")
            others = select(func.count()).where(tokens.c.owner == owner)
            if not connection.scalar(others):
                _end_jobs(connection, owner)

    def find(self, secret: str) -> StoredToken | None:
        """Return the token with this secret, unless it has expired, or None; note its use."""
        if not _SECRET.fullmatch(secret):
            return None
        digest = _secret_digest(secret)
        with self._database.read() as connection:
            row = connection.execute(
                select(*tokens.c, (now_s() - func.coalesce(tokens.c.used_s, 0)).label("unused_s"))
                .where(tokens.c.digest == digest)
                .where(or_(tokens.c.expires_s.is_(None), tokens.c.expires_s > now_s()))
            ).one_or_none()
        if row is None or not hmac.compare_digest(row.digest, digest):
            return None
        if row.unused_s > USE_S:
            with self._database.write() as connection:
                used = update(tokens).where(tokens.c.digest == digest).values(used_s=now_s())
                connection.execute(used)
        return _token(row)


def _end_jobs(connection: Connection, owner: str) -> None:
    problem = plain_problem(AccessError("The last token of this job's owner was revoked."))
    connection.execute(
        update(jobs)
        .where(jobs.c.owner == owner, jobs.c.state.in_(OPEN))
        .values(
            state="failed", error=json_text(problem), finished_s=now_s(),
            version=jobs.c.version + 1,
        )
    )  # fmt: skip


def _secret_digest(secret: str) -> str:
    # 256 random bits need neither salt nor a slow hash.
    return sha256_hex(secret.encode())


def _token(row: Any) -> StoredToken:
    return StoredToken(
        name=row.name, owner=row.owner, scope=cast(Scope, row.scope), created_s=row.created_s,
        expires_s=row.expires_s, used_s=row.used_s,
    )  # fmt: skip
