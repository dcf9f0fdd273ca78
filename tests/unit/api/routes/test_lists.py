"""Lists of jobs: by kind, state, model, profile, time and words; their labels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.asked import CELL, SMALL, good, listed

SWEPT = {**CELL, "sweep": "link_bandwidth=1x,2x"}


@pytest.fixture(scope="module")
def made(client: httpx.Client) -> list[Any]:
    """Two tunes, of two models, each in a moment of its own, and a sweep."""
    small = good(client.post("/v1/tunes", json=SMALL), 202)
    large = small
    while large["created"] == small["created"]:
        large = good(client.post("/v1/tunes", json={**SMALL, "model": "gpt3-2.7b"}), 202)
    return [small, large, good(client.post("/v1/sweeps", json=SWEPT), 202)]


def ids(made: list[Any]) -> list[str]:
    return [one["id"] for one in made]


def test_all_kinds_newest_first(client: httpx.Client, made: list[Any]) -> None:
    small, large, sweep = ids(made)
    assert [one for one in listed(client, "jobs") if one in ids(made)] == [sweep, large, small]
    tunes = listed(client, "jobs", kind="tune")
    assert small in tunes
    assert sweep not in tunes
    assert listed(client, "jobs", kind="sweep", state="queued") == [sweep]
    assert listed(client, "jobs", kind="calibration", q=small) == []


def test_by_model_profile_and_state(client: httpx.Client, made: list[Any]) -> None:
    small, large, _ = ids(made)
    assert large in listed(client, "tunes", model="gpt3-2.7b")
    assert small not in listed(client, "tunes", model="gpt3-2.7b")
    wanted = {"model": "gpt3-1.3b", "profile": "h100-dgx"}
    assert small in listed(client, "tunes", **wanted, state="queued")
    assert small not in listed(client, "tunes", **wanted, state="done")
    assert listed(client, "tunes", profile="gpt3-1.3b") == []
    assert listed(client, "tunes", model="gpt3-1_3b") == []  # no wildcard of SQL


def test_by_time(client: httpx.Client, made: list[Any]) -> None:
    small, large, _ = made
    moment = datetime.fromisoformat(large["created"])
    assert small["id"] not in listed(client, "tunes", created_from=large["created"])
    earlier = (moment - timedelta(milliseconds=1)).astimezone(UTC).isoformat()
    earlier = earlier.replace("+00:00", "Z")
    assert large["id"] in listed(client, "tunes", created_from=earlier)
    assert large["id"] not in listed(client, "tunes", created_before=earlier)
    assert small["id"] in listed(client, "tunes", created_before=large["created"])


def test_search(client: httpx.Client, made: list[Any]) -> None:
    small, _, sweep = ids(made)
    assert sweep in listed(client, "jobs", q="LINK_bandwidth=1X,2x gpt3-1.3B")
    assert small not in listed(client, "jobs", q="link_bandwidth")
    assert listed(client, "jobs", q=small) == [small]
    assert listed(client, "jobs", q="gpt3_1.3b") == []  # no wildcard of SQL
    assert listed(client, "tunes", q=f"TRIALS {small}") == [small]


def test_labels(client: httpx.Client, made: list[Any]) -> None:
    job = made[0]
    path = f"/v1/jobs/{job['id']}"
    assert job["label"] is None
    assert good(client.patch(path, json={"label": "Für Montag"}))["label"] == "Für Montag"
    assert listed(client, "jobs", q="montag FÜR") == [job["id"]]
    assert good(client.get(job["links"]["self"]))["label"] == "Für Montag"
    assert good(client.patch(path, json={"label": None}))["label"] is None
    assert listed(client, "jobs", q="montag") == []
