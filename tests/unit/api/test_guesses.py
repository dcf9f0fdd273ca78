"""The rate of requests, and of tokens that nobody has: those count by the caller's address, and
lock nobody out."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from domino_tune.service.sql.database import open_database
from domino_tune.service.tokens import TokenDesk
from tests.support.door.made import JSON, send
from tests.support.inside import Inside, inside

BURST: Final = 5
LIMITED: Final[dict[str, Any]] = {"burst": BURST, "rate_per_s": 0.001}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[TokenDesk]:
    database = open_database(f"sqlite:///{tmp_path}/jobs.db")
    yield TokenDesk(database)
    database.close()


def ask(service: Inside, secret: str, address: str = "127.0.0.1", **headers: str) -> int:
    """The status of a call with a token."""
    named = {"Authorization": f"Bearer {secret}", **headers}
    return service.exchange([send("GET", "/v1/models", None, JSON, **named)], address).status


def guess(service: Inside, address: str = "127.0.0.1", **headers: str) -> int:
    """The status of a call with a token that nobody has."""
    return ask(service, f"dt_{secrets.token_urlsafe(32)}", address, **headers)


def test_the_rate_is_bounded(tmp_path: Path) -> None:
    with inside(tmp_path, **LIMITED) as service:
        asked = [send("GET", "/v1/models")]
        assert [service.exchange(asked).status for _ in range(7)] == [200] * BURST + [429] * 2
        assert service.exchange([send("GET", "/healthz")]).status == 200


def test_guesses_are_limited_and_lock_nobody_out(tmp_path: Path, desk: TokenDesk) -> None:
    real = desk.add("ann", "ann", "read")
    with inside(tmp_path, tokens_required=True, **LIMITED) as service:
        assert ask(service, real) == 200
        assert [guess(service) for _ in range(BURST + 3)] == [401] * BURST + [429] * 3
        assert [ask(service, real) for _ in range(BURST)] == [200] * (BURST - 1) + [429]
        assert guess(service, "192.0.2.7") == 401
        new = [desk.add(f"new-{number}", "ann", "read") for number in range(12)]
        with ThreadPoolExecutor(8) as threads:
            flood = threads.map(lambda _: guess(service), range(100))
            assert [ask(service, one) for one in new] == [200] * 12  # nobody saw them before
            assert Counter(flood) == {429: 100}


def test_a_revoked_token_is_a_guess(tmp_path: Path, desk: TokenDesk) -> None:
    real = desk.add("ann", "ann", "read")
    with inside(tmp_path, tokens_required=True, **LIMITED) as service:
        assert ask(service, real) == 200
        assert [guess(service) for _ in range(BURST)] == [401] * BURST
        desk.revoke("ann")
        assert ask(service, real) == 429


@pytest.mark.parametrize(
    ("trusted", "counted_apart"),
    [((), False), (("127.0.0.1",), True), (("10.0.0.0/8", "127.0.0.0/8"), True)],
)
def test_behind_a_trusted_proxy_callers_are_told_apart(
    tmp_path: Path, desk: TokenDesk, trusted: tuple[str, ...], counted_apart: bool
) -> None:
    # What the caller says of itself stands before what the proxies say.
    one, other = "192.0.2.9, 192.0.2.1", "192.0.2.9, 192.0.2.2, 127.0.0.1"
    with inside(tmp_path, trusted, tokens_required=True, **LIMITED) as service:
        many = [guess(service, X_Forwarded_For=one) for _ in range(BURST + 1)]
        assert many == [401] * BURST + [429]
        assert guess(service, X_Forwarded_For=other) == (401 if counted_apart else 429)
