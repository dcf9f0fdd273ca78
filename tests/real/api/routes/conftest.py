"""One real service for the tests of routes, and a job of each kind that is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.real.api.routes.kinds import KINDS
from tests.support.asked import ended, good
from tests.support.service import Service, serving


class Jobs:
    """A small job of each kind, asked for when a test first needs it."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._asked: dict[str, Any] = {}
        self._done: dict[str, Any] = {}

    def asked(self, kind: str) -> Any:
        """What was answered to the request."""
        if kind not in self._asked:
            answer = self._client.post(f"/v1/{kind}s", json=KINDS[kind].small)
            job = self._asked[kind] = good(answer, 202)
            assert answer.headers["location"] == job["links"]["self"]
            assert int(answer.headers["retry-after"]) >= 1
        return self._asked[kind]

    def done(self, kind: str) -> Any:
        """The job when it has ended well."""
        if kind not in self._done:
            job = self._done[kind] = ended(self._client, self.asked(kind)["links"]["self"])
            assert job["state"] == "done", job
        return self._done[kind]


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("routes"), burst=100_000) as made:
        yield made


@pytest.fixture(scope="package")
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as made:
        yield made


@pytest.fixture(scope="package")
def jobs(client: httpx.Client) -> Jobs:
    return Jobs(client)


@pytest.fixture(scope="package")
def tuned(jobs: Jobs) -> Any:
    """The JSON of a tune that is done."""
    return jobs.done("tune")
