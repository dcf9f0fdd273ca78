"""Server-sent events: ids, coming back, the end."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from api.jobs import MOST_STREAMS
from tests.support.asked import LONG, SMALL, described, good, refused


def events(text: str) -> list[dict[str, str]]:
    """Fields of every event that has data."""
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        for block in text.split("\n\n")
    ]
    return [block for block in blocks if "data" in block]


def test_they_tell_every_state_and_end(client: httpx.Client) -> None:
    place = client.post("/v1/tunes", json={**SMALL, "seed": 11}).headers["location"]
    answer = client.get(f"{place}/events")
    described(answer)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.text.startswith("retry: ")
    found = events(answer.text)
    jobs = [json.loads(event["data"]) for event in found]
    assert [job["state"] for job in jobs] == [event["event"] for event in found]
    assert jobs[-1]["state"] == "done"
    assert "result" not in jobs[-1]
    versions = [int(event["id"]) for event in found]
    assert versions == sorted(set(versions))


def test_who_comes_back_gets_what_is_new(client: httpx.Client, tuned: Any) -> None:
    place = tuned["links"]["events"]
    last = events(client.get(place).text)[-1]["id"]
    again = client.get(place, headers={"Last-Event-ID": last})
    assert again.status_code == 204
    described(again)
    for old in ("1", "nonsense"):
        assert events(client.get(place, headers={"Last-Event-ID": old}).text)[-1]["id"] == last


def test_no_more_streams_open_however_fast_they_are_asked_for(client: httpx.Client) -> None:
    place = client.post("/v1/tunes", json={**LONG, "seed": 7}).headers["location"]
    asked = MOST_STREAMS + 16
    with httpx.Client(base_url=client.base_url, timeout=30, limits=httpx.Limits()) as many:

        def opened(number: int) -> httpx.Response:
            return many.send(many.build_request("GET", f"{place}/events"), stream=True)

        with ThreadPoolExecutor(asked) as threads:
            streams = list(threads.map(opened, range(asked)))
        assert Counter(stream.status_code for stream in streams) == {200: MOST_STREAMS, 429: 16}
        for stream in streams:
            stream.close()
    assert good(client.post(f"{place}/cancel"))["state"] == "cancelled"


def test_streams_are_bounded(client: httpx.Client) -> None:
    place = client.post("/v1/tunes", json=LONG).headers["location"]
    limits = httpx.Limits(max_connections=MOST_STREAMS + 2)
    with httpx.Client(base_url=client.base_url, limits=limits, timeout=30) as many:
        asked = many.build_request("GET", f"{place}/events")
        opened = [many.send(asked, stream=True) for _ in range(MOST_STREAMS)]
        lines = [stream.iter_lines() for stream in opened]  # a reader that is dropped closes
        assert all(next(line).startswith("retry") for line in lines)
        refusal = many.send(asked, stream=True)
        assert refusal.status_code == 429
        refusal.read()
        assert "retry-after" in refusal.headers
        refused(refusal, 429)
        waiting = many.post("/v1/tunes", json=LONG, headers={"Prefer": "wait=30"})
        assert "preference-applied" not in waiting.headers
        good(client.post(f"{good(waiting, 202)['links']['self']}/cancel"))
        for stream in opened:
            stream.close()
    assert good(client.post(f"{place}/cancel"))["state"] == "cancelled"
