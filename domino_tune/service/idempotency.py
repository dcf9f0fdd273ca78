"""Idempotency keys: a repeated request makes nothing new and gets the first answer again.

After draft-ietf-httpapi-idempotency-key-header. The answer is stored in the same transaction as
what the request makes, so that both exist or neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, delete, select, tuple_

from domino_tune.base.errors import KeyReuseError
from domino_tune.service.encoding import sha256_hex
from domino_tune.service.sql.tables import idempotency as table
from domino_tune.service.sql.tables import insert, now_s

LIFETIME_S: Final = 24 * 3600.0
"""A key may be used for something else after this time."""
_PURGED_AT_ONCE: Final = 100


@dataclass(frozen=True, kw_only=True)
class Idempotency:
    """A key that ``owner`` gave on ``route``, and the digest of the body that came with it."""

    owner: str
    route: str
    key: str
    body_digest: str

    @classmethod
    def of(cls, owner: str, route: str, key: str, body: bytes) -> Idempotency:
        """Return the key with the SHA-256 of ``body`` as its digest."""
        return cls(owner=owner, route=route, key=key, body_digest=sha256_hex(body))


def claim_key(connection: Connection, given: Idempotency | None, answer: str) -> str | None:
    """Store ``answer`` under the key and return None; or return the answer stored before.

    Call this in the transaction that makes what ``answer`` describes; another one with the same key
    waits for it. Raise KeyReuseError where the key was used with another body.
    """
    if given is None:
        return None
    _purge(connection)
    stored = connection.execute(
        insert(connection, table)
        .values(
            owner=given.owner,
            route=given.route,
            key=given.key,
            body_digest=given.body_digest,
            answer=answer,
            created_s=now_s(),
        )
        .on_conflict_do_nothing()
        .returning(table.c.key)
    )
    if stored.first() is not None:
        return None
    earlier = _find(connection, given)
    if earlier is None:  # expired, and just deleted by another
        return claim_key(connection, given, answer)
    return earlier


def earlier_answer(connection: Connection, given: Idempotency) -> str | None:
    """Return the answer stored under the key, or None. Raise KeyReuseError as ``claim_key`` does.

    Call this before looking anything up: what the first request named may be gone now.
    """
    return _find(connection, given, table.c.created_s >= now_s() - LIFETIME_S)


def _find(
    connection: Connection, given: Idempotency, *conditions: ColumnElement[bool]
) -> str | None:
    row = connection.execute(
        select(table.c.body_digest, table.c.answer).where(_same_key(given), *conditions)
    ).one_or_none()
    if row is None:
        return None
    if row.body_digest != given.body_digest:
        raise KeyReuseError(
            f"The Idempotency-Key {given.key!r} came before with another body; use a new key for a "
            "new request."
        )
    answer: str = row.answer
    return answer


def _same_key(given: Idempotency) -> ColumnElement[bool]:
    return and_(
        table.c.owner == given.owner, table.c.route == given.route, table.c.key == given.key
    )


def _purge(connection: Connection) -> None:
    """Delete some expired keys; skip those that another transaction is deleting."""
    key = (table.c.owner, table.c.route, table.c.key)
    old = (
        select(*key)
        .where(table.c.created_s < now_s() - LIFETIME_S)
        .order_by(table.c.created_s)
        .limit(_PURGED_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    connection.execute(delete(table).where(tuple_(*key).in_(old)))
