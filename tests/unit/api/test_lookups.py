"""Tokens are looked up once for requests that come together, and never as they were before."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from api.lookups import Lookups
from domino_tune.base.errors import UnavailableError
from domino_tune.service.sql.database import open_database
from domino_tune.service.tokens import Token, TokenDesk
from tests.support.processes import PATIENCE_S

pytestmark = pytest.mark.anyio


class Finding:
    """A look-up; each call reads, is counted, then waits for ``gate``."""

    def __init__(self, desk: TokenDesk) -> None:
        self.desk = desk
        self.calls = 0
        self.gate = threading.Event()

    def __call__(self, secret: str) -> Token | None:
        found = self.desk.find(secret)
        self.calls += 1
        assert self.gate.wait(PATIENCE_S)
        return found


async def begun(finding: Finding, calls: int) -> None:
    while finding.calls < calls:
        await asyncio.sleep(0.001)


@pytest.fixture
def desk(tmp_path: Path) -> TokenDesk:
    return TokenDesk(open_database(f"sqlite:///{tmp_path}/service.db"))


@pytest.mark.parametrize("seen", [True, False])
async def test_requests_that_come_together_share_a_lookup(desk: TokenDesk, seen: bool) -> None:
    secret = desk.add("ann", "ann", "read")
    finding = Finding(desk)
    lookups = Lookups(finding)
    first = asyncio.create_task(lookups.find(secret, seen=seen))
    await begun(finding, 1)
    later = [asyncio.create_task(lookups.find(secret, seen=seen)) for _ in range(60)]
    await asyncio.sleep(0)
    later[0].cancel()
    assert finding.calls == 1
    finding.gate.set()
    found = await asyncio.gather(first, *later[1:])
    assert {one.name for one in found if one} == {"ann"}
    assert all(found)
    assert finding.calls == 2


async def test_a_request_behind_a_revocation_is_refused(desk: TokenDesk) -> None:
    """Although a look-up that began before is still under way."""
    secret = desk.add("ann", "ann", "read")
    finding = Finding(desk)
    lookups = Lookups(finding)
    before = asyncio.create_task(lookups.find(secret, seen=True))
    await begun(finding, 1)
    desk.revoke("ann")
    behind = asyncio.create_task(lookups.find(secret, seen=True))
    await asyncio.sleep(0)
    finding.gate.set()
    assert await before is not None
    assert await behind is None


def test_an_error_is_that_of_all_who_wait_and_of_nobody_else(desk: TokenDesk) -> None:
    outcomes: list[Token | Exception] = []

    def find(secret: str) -> Token | None:
        raise UnavailableError("The database is away.")

    async def work() -> None:
        lookups = Lookups(find)
        asked = (lookups.find("dt_x", seen=False) for _ in range(3))
        outcomes.extend(await asyncio.gather(*asked, return_exceptions=True))  # type: ignore[arg-type]
        with pytest.raises(UnavailableError):
            await lookups.find("dt_x", seen=False)

    asyncio.run(work())
    assert [type(one) for one in outcomes] == [UnavailableError] * 3
