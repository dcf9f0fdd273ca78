"""The service within this process."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.inside import Inside, inside


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("service"), burst=1_000_000) as made:
        yield made


@pytest.fixture(scope="module")
def client(service: Inside) -> Iterator[httpx.Client]:
    with service.client() as made:
        yield made
