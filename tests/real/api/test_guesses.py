"""Tokens that nobody has: counted by the caller's address, and no trouble to others."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from domino_tune.service.sql.database import open_database
from domino_tune.service.tokens import TokenDesk
from tests.real.domino_tune.serving import command, served
from tests.support.processes import PATIENCE_S
from tests.support.service import serving

BURST: Final = 5
PATH: Final = "/v1/models"


def guess(client: httpx.Client, **headers: str) -> int:
    """The status of a call with a token that nobody has."""
    secret = f"Bearer dt_{secrets.token_urlsafe(32)}"
    return client.get(PATH, headers={"Authorization": secret, **headers}).status_code


def test_guesses_are_limited_and_lock_nobody_out(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/jobs.db")
    real = {"Authorization": f"Bearer {TokenDesk(database).add('ann', 'ann', 'read')}"}
    database.close()
    given = {"tokens_required": True, "workers": 0, "burst": BURST, "rate_per_s": 0.01}
    with serving(tmp_path, **given) as service, service.client() as client:
        assert [guess(client) for _ in range(BURST + 3)] == [401] * BURST + [429] * 3
        assert [client.get(PATH, headers=real).status_code for _ in range(BURST)] == [200] * BURST
        with ThreadPoolExecutor(8) as threads:
            more = Counter(threads.map(lambda _: guess(client), range(100)))
        assert more == {429: 100}


@pytest.mark.parametrize(
    ("trusted", "counted_apart"),
    [((), False), (("127.0.0.1",), True), (("10.0.0.0/8", "127.0.0.0/8"), True)],
)
def test_behind_a_trusted_proxy_callers_are_told_apart(
    tmp_path: Path, trusted: tuple[str, ...], counted_apart: bool
) -> None:
    assert command(tmp_path, "tokens", "add", "ann").returncode == 0
    options = [word for one in trusted for word in ("--trusted-proxy", one)]
    # What the caller says of itself stands before what the proxies say.
    one, other = "192.0.2.9, 192.0.2.1", "192.0.2.9, 192.0.2.2, 127.0.0.1"
    limited, over = threading.Event(), threading.Event()
    with (
        served(tmp_path, *options) as server,
        httpx.Client(base_url=server.url) as client,
        ThreadPoolExecutor(8) as threads,
    ):

        def flood() -> None:
            while not over.is_set():
                if guess(client, **{"X-Forwarded-For": one}) == 429:
                    limited.set()

        for _ in range(8):
            threads.submit(flood)
        try:
            assert limited.wait(PATIENCE_S)
            found = {guess(client, **{"X-Forwarded-For": other}) for _ in range(40)}
        finally:
            over.set()
    assert (429 not in found) == counted_apart
