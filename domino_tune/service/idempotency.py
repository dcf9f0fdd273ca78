"""Idempotency keys: a request that comes twice makes one thing, and is answered the same.

After draft-ietf-httpapi-idempotency-key-header. What was answered is stored in the transaction that
makes the thing, so that there are both or none.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, delete, select, tuple_

from domino_tune.base.errors import KeyReuseError
from domino_tune.service.sql.statements import insert, now_s
from domino_tune.service.sql.tables import idempotency as table
from simulator.errors import InputError

KEPT_S: Final = 24 * 3600.0
"""Afterwards a key may be used anew."""
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_PURGED_AT_ONCE: Final = 100


@dataclass(frozen=True, kw_only=True)
class Idempotency:
    """A key that ``owner`` gave on ``route``, and the digest of the body that came with it.

    Raises InputError for a key that is not 1 to 255 visible ASCII characters.
    """

    owner: str
    route: str
    key: str
    body_digest: str

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise InputError(
                f"An Idempotency-Key is 1 to 255 visible ASCII characters, got {self.key[:64]!r}; "
                "a random UUID is a good one."
            )

    @classmethod
    def of(cls, owner: str, route: str, key: str, body: bytes) -> Idempotency:
        """With the SHA-256 of ``body`` as its digest."""
        return cls(owner=owner, route=route, key=key, body_digest=hashlib.sha256(body).hexdigest())


def claim_key(connection: Connection, given: Idempotency | None, answer: str) -> str | None:
    """None where ``answer`` is to be made now; else what was answered to this key before.

    Belongs to the transaction that makes the thing; another one with the same key waits for it.
    Raises KeyReuseError where the key came with another body.
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
    before = _before(connection, given)
    if before is None:  # past its time, and just forgotten by another
        return claim_key(connection, given, answer)
    return before


def answered(connection: Connection, given: Idempotency) -> str | None:
    """What was answered to this key before, to be asked for before anything is looked up.

    What a first request could name may be gone when it comes again. Raises KeyReuseError as
    ``claim_key`` does.
    """
    return _before(connection, given, table.c.created_s >= now_s() - KEPT_S)


def _before(
    connection: Connection, given: Idempotency, *conditions: ColumnElement[bool]
) -> str | None:
    before = connection.execute(
        select(table.c.body_digest, table.c.answer).where(_same_key(given), *conditions)
    ).one_or_none()
    if before is None:
        return None
    if before.body_digest != given.body_digest:
        raise KeyReuseError(
            f"The Idempotency-Key {given.key!r} came before with another body; use a new key for a "
            "new request."
        )
    answer: str = before.answer
    return answer


def _same_key(given: Idempotency) -> ColumnElement[bool]:
    return and_(
        table.c.owner == given.owner, table.c.route == given.route, table.c.key == given.key
    )


def _purge(connection: Connection) -> None:
    """Forget some keys that are past their time; those that another purges are passed over."""
    key = (table.c.owner, table.c.route, table.c.key)
    old = (
        select(*key)
        .where(table.c.created_s < now_s() - KEPT_S)
        .order_by(table.c.created_s)
        .limit(_PURGED_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    connection.execute(delete(table).where(tuple_(*key).in_(old)))
