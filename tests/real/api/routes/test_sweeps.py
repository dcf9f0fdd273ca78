"""Sweeps: points before the end, and those without any."""

from __future__ import annotations

from typing import Any

import httpx

from tests.real.api.routes.kinds import KINDS
from tests.support.asked import CELL, ended, good
from tests.support.processes import wait_until


def test_points_come_before_the_end(client: httpx.Client) -> None:
    place = client.post("/v1/sweeps", json=KINDS["sweep"].long).headers["location"]

    def points() -> list[Any]:
        return list(good(client.get(f"{place}/points"))["items"])

    seen = wait_until(points)
    assert good(client.post(f"{place}/cancel"))["state"] in ("cancelled", "done")
    assert points()[: len(seen)] == seen


def test_one_without_a_possible_point_fails(client: httpx.Client) -> None:
    answer = client.post("/v1/sweeps", json={**CELL, "sweep": "tp=3,5"})
    job = ended(client, answer.headers["location"])
    assert job["state"] == "failed"
    assert "No point" in job["error"]["detail"]
