"""Lists of jobs by state, model, profile and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.asked import SMALL, ended, good, refused


@pytest.fixture(scope="module")
def made(client: httpx.Client) -> list[Any]:
    """Two tunes that are done, of two models."""
    found = []
    for model in ("gpt3-1.3b", "gpt3-2.7b"):
        job = good(client.post("/v1/tunes", json={**SMALL, "model": model}), 202)
        found.append(ended(client, job["links"]["self"]))
    return found


def listed(client: httpx.Client, **wanted: str) -> list[str]:
    """Ids of all tunes that are wanted, over pages of one."""
    found: list[str] = []
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        cursor = {"cursor": page["next"]} if page["next"] else {}
        page = good(client.get("/v1/tunes", params={"limit": "1", **cursor, **wanted}))
        found += [one["id"] for one in page["items"]]
    return found


def sweeps(client: httpx.Client, **wanted: str) -> list[str]:
    """Ids of the newest sweeps that are wanted. Other tests ask the same server for more."""
    return [one["id"] for one in good(client.get("/v1/sweeps", params=wanted))["items"]]


def test_by_model_profile_and_state(client: httpx.Client, made: list[Any]) -> None:
    small, large = (one["id"] for one in made)
    assert large in listed(client, model="gpt3-2.7b")
    assert small not in listed(client, model="gpt3-2.7b")
    assert small in listed(client, model="gpt3-1.3b", profile="h100-dgx", state="done")
    assert small not in listed(client, model="gpt3-1.3b", state="failed")
    assert listed(client, profile="gpt3-1.3b") == []
    assert listed(client, model="gpt3-1_3b") == []  # no wildcard of SQL


def test_a_plan_file_is_found_by_what_it_was_made_for(
    client: httpx.Client, made: list[Any]
) -> None:
    _, large = made
    plan = client.get(large["links"]["plan"]).text
    asked = f'{{"plan": {plan}, "sweep": "link_bandwidth=1x,2x"}}'
    headers = {"Content-Type": "application/json"}
    job = good(client.post("/v1/sweeps", content=asked, headers=headers), 202)
    assert job["request"]["plan"]["model"] == "gpt3-2.7b"
    wanted = {"model": "gpt3-2.7b", "profile": "h100-dgx"}
    assert job["id"] in sweeps(client, **wanted)
    assert job["id"] not in sweeps(client, **{**wanted, "model": "gpt3-1.3b"})


def test_by_time(client: httpx.Client, made: list[Any]) -> None:
    small, large = made
    moment = datetime.fromisoformat(large["created"])
    assert small["id"] not in listed(client, created_from=large["created"])
    earlier = (moment - timedelta(milliseconds=1)).astimezone(UTC).isoformat()
    assert large["id"] in listed(client, created_from=earlier.replace("+00:00", "Z"))
    assert large["id"] not in listed(client, created_before=earlier.replace("+00:00", "Z"))
    assert small["id"] in listed(client, created_before=large["created"])


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ({"state": "odd"}, "state"), ({"model": "../x"}, "model"),
        ({"created_from": "yesterday"}, "created_from"),
        ({"created_from": "2026-01-31T12:00:00"}, "created_from"),
        ({"created_before": "2026-13-31T12:00:00Z"}, "created_before"),
        ({"sort": "id"}, "sort"),
    ],
)  # fmt: skip
def test_what_cannot_be_wanted(client: httpx.Client, wanted: dict[str, str], name: str) -> None:
    problem = refused(client.get("/v1/tunes", params=wanted), 422)
    assert [fault["parameter"] for fault in problem["errors"]] == [name]
