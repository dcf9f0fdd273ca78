"""Tokens are shown once, kept as hashes, and revoked at once."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import select

from domino_tune.base.errors import ConflictError, NotFoundError
from domino_tune.service.jobs.desk import JobDesk
from domino_tune.service.jobs.leases import Leases
from domino_tune.service.sql import tables
from domino_tune.service.sql.database import Database
from domino_tune.service.tokens import TokenDesk
from simulator.errors import InputError
from tests.real.domino_tune.service.made import submit


@pytest.fixture
def tokens(database: Database) -> TokenDesk:
    return TokenDesk(database)


def test_a_token_is_found_by_its_secret(tokens: TokenDesk) -> None:
    secret = tokens.add("laptop", "ann", "tune")
    assert re.fullmatch(r"dt_[A-Za-z0-9_-]{43}", secret)
    tokens.add("ci", "bob", "read")
    found = tokens.find(secret)
    assert found
    assert (found.name, found.owner, found.scope) == ("laptop", "ann", "tune")
    assert [token.name for token in tokens.list()] == ["ci", "laptop"]


def test_anything_else_finds_nothing(tokens: TokenDesk) -> None:
    tokens.add("laptop", "ann", "tune")
    for secret in ("", "dt_", "dt_" + "A" * 43, "dt_" + "A" * 42 + "\n", "é" * 46, "\udcff"):
        assert tokens.find(secret) is None


def test_the_secret_is_not_kept(tokens: TokenDesk, database: Database) -> None:
    secret = tokens.add("laptop", "ann", "tune")
    with database.read() as connection:
        rows = connection.execute(select(tables.tokens)).all()
    assert secret not in repr(rows)
    assert secret[3:] not in repr(rows)


def test_a_revoked_token_opens_nothing(tokens: TokenDesk) -> None:
    secret = tokens.add("laptop", "ann", "tune")
    tokens.revoke("laptop")
    assert tokens.find(secret) is None
    assert tokens.list() == ()
    with pytest.raises(NotFoundError, match="laptop"):
        tokens.revoke("laptop")
    assert tokens.add("laptop", "ann", "tune") != secret


def test_a_name_is_taken_once(tokens: TokenDesk) -> None:
    secret = tokens.add("laptop", "ann", "tune")
    with pytest.raises(ConflictError, match="already"):
        tokens.add("laptop", "bob", "admin")
    found = tokens.find(secret)
    assert found
    assert found.owner == "ann"


@pytest.mark.parametrize(("name", "owner"), [("", "ann"), ("A", "ann"), ("a", "../ann"), ("a", "")])
def test_names_are_slugs(tokens: TokenDesk, name: str, owner: str) -> None:
    with pytest.raises(InputError, match="small letters"):
        tokens.add(name, owner, "read")
    assert tokens.list() == ()


def test_an_expired_token_opens_nothing(tokens: TokenDesk) -> None:
    assert tokens.find(tokens.add("short", "ann", "tune", days=1e-9)) is None
    secret = tokens.add("long", "ann", "tune", days=1)
    assert tokens.find(secret)
    long, _ = tokens.list()
    assert long.expires_s
    assert long.expires_s > long.created_s
    assert long.used_s


def test_with_the_last_token_of_an_owner_his_jobs_end(
    tokens: TokenDesk, desk: JobDesk, database: Database
) -> None:
    tokens.add("laptop", "ann", "tune")
    tokens.add("desktop", "ann", "tune")
    waits, other = submit(desk), submit(desk, owner="bob")
    leases = Leases(database, "worker")
    claimed = leases.claim()
    assert claimed
    tokens.revoke("laptop")
    assert desk.get(waits.id, None).state == "running"
    tokens.revoke("desktop")
    ended = desk.get(waits.id, None)
    assert ended.state == "failed"
    assert ended.error
    assert "revoked" in ended.error["detail"]
    assert leases.asked([claimed]) == {}
    assert desk.get(other.id, None).state == "queued"
