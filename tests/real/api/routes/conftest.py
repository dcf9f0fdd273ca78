"""One real service for the tests of routes, and a tune that is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.asked import SMALL, ended, good
from tests.support.service import Service, serving


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("routes"), burst=100_000) as made:
        yield made


@pytest.fixture(scope="package")
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as made:
        yield made


@pytest.fixture(scope="package")
def tuned(client: httpx.Client) -> Any:
    """The JSON of a tune that is done."""
    made = client.post("/v1/tunes", json=SMALL)
    good(made, 202)
    job = ended(client, made.headers["location"])
    assert job["state"] == "done", job
    return job
