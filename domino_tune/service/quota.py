"""Quotas: how long finished jobs are kept, and how much of an owner is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, func, select

from domino_tune.base.errors import QuotaError
from domino_tune.service.sql.tables import jobs, models, profile_bodies, profiles

DAY_S: Final = 24 * 3600.0
MIB: Final = 1 << 20
_OWNER_LOCK: Final = 0x7175
"""First half of the advisory lock that serializes what an owner adds on PostgreSQL."""


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Limits of each owner: finished jobs stay for ``seconds``, at most ``jobs`` of them; jobs,
    profiles and models take at most ``size_bytes`` together."""

    seconds: float = 30 * DAY_S
    jobs: int = 1000
    size_bytes: int = 2048 * MIB


def lock_owner(connection: Connection, owner: str) -> None:
    """Let other transactions that add something of ``owner`` wait until this one ends: what they
    count must not change before they add to it."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
        connection.execute(select(func.pg_advisory_xact_lock(_OWNER_LOCK, func.hashtext(owner))))


def stored_bytes(connection: Connection, owner: str) -> int:
    """Return the bytes that are stored of an owner."""
    in_jobs = select(func.sum(jobs.c.stored_bytes)).where(jobs.c.owner == owner)
    in_profiles = (
        select(func.sum(func.length(profile_bodies.c.body)))
        .join(profiles, profiles.c.content_id == profile_bodies.c.content_id)
        .where(profiles.c.owner == owner)
    )
    in_models = select(func.sum(func.length(models.c.body))).where(models.c.owner == owner)
    return sum(int(connection.scalar(one) or 0) for one in (in_jobs, in_profiles, in_models))


def check_quota(connection: Connection, owner: str, more_bytes: int, keep: Keep) -> None:
    """Raise QuotaError where ``more_bytes`` of an owner exceed what is kept; lock the owner."""
    lock_owner(connection, owner)
    stored = stored_bytes(connection, owner)
    if stored + more_bytes > keep.size_bytes:
        raise QuotaError(
            f"You have {stored / MIB:,.1f} MiB stored, and {keep.size_bytes / MIB:,.0f} MiB is the "
            f"most; this needs {more_bytes / MIB:,.1f} MiB. Delete jobs, profiles or models that "
            "you do not need any more."
        )
