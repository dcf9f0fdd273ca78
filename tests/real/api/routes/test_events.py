"""Server-sent events: ids, coming back, how many streams are open."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from api.jobs import MOST_STREAMS
from tests.real.api.routes.asking import events
from tests.support.asked import LONG, SMALL, described, good
from tests.support.processes import PATIENCE_S


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
    versions = [int(event["id"]) for event in found]
    assert versions == sorted(set(versions))


def test_who_knows_an_old_state_is_told_the_last(client: httpx.Client, tuned: Any) -> None:
    place = tuned["links"]["events"]
    last = events(client.get(place).text)[-1]["id"]
    for old in ("1", "nonsense"):
        assert events(client.get(place, headers={"Last-Event-ID": old}).text)[-1]["id"] == last


def test_no_more_streams_open_however_fast_they_are_asked_for(client: httpx.Client) -> None:
    place = client.post("/v1/tunes", json={**LONG, "seed": 7}).headers["location"]
    asked = MOST_STREAMS + 16
    unlimited = httpx.Limits()
    with httpx.Client(base_url=client.base_url, timeout=PATIENCE_S, limits=unlimited) as many:

        def opened(number: int) -> httpx.Response:
            return many.send(many.build_request("GET", f"{place}/events"), stream=True)

        with ThreadPoolExecutor(asked) as threads:
            streams = list(threads.map(opened, range(asked)))
        assert Counter(stream.status_code for stream in streams) == {200: MOST_STREAMS, 429: 16}
        refusal = next(stream for stream in streams if stream.status_code == 429)
        refusal.read()
        described(refusal)
        assert "retry-after" in refusal.headers
        waiting = many.post("/v1/tunes", json=LONG, headers={"Prefer": "wait=30"})
        assert "preference-applied" not in waiting.headers
        good(client.post(f"{good(waiting, 202)['links']['self']}/cancel"))
        for stream in streams:
            stream.close()
    assert good(client.post(f"{place}/cancel"))["state"] == "cancelled"
