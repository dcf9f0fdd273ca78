"""One list of all kinds of jobs, and their labels."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.asked import CELL, SMALL, ended, good, refused


@pytest.fixture(scope="module")
def made(client: httpx.Client) -> list[Any]:
    """A tune and a sweep that are done."""
    swept = {**CELL, "sweep": "link_bandwidth=1x,2x"}
    asked = [("tunes", {**SMALL, "seed": 7}), ("sweeps", swept)]
    found = [good(client.post(f"/v1/{kind}", json=body), 202) for kind, body in asked]
    return [ended(client, job["links"]["self"]) for job in found]


def listed(client: httpx.Client, **wanted: str) -> list[str]:
    """Ids of all jobs that are wanted, over pages of one."""
    found: list[str] = []
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        cursor = {"cursor": page["next"]} if page["next"] else {}
        page = good(client.get("/v1/jobs", params={"limit": "1", **cursor, **wanted}))
        found += [one["id"] for one in page["items"]]
    return found


def test_all_kinds_newest_first(client: httpx.Client, made: list[Any]) -> None:
    tune, sweep = (one["id"] for one in made)
    assert [one for one in listed(client) if one in (tune, sweep)] == [sweep, tune]
    tunes = listed(client, kind="tune")
    assert tune in tunes
    assert sweep not in tunes
    assert tune not in listed(client, kind="sweep", state="done")
    assert listed(client, kind="calibration", q=tune) == []
    problem = refused(client.get("/v1/jobs", params={"kind": "dance"}), 422)
    assert [fault["parameter"] for fault in problem["errors"]] == ["kind"]


def test_search(client: httpx.Client, made: list[Any]) -> None:
    tune, sweep = (one["id"] for one in made)
    assert sweep in listed(client, q="LINK_bandwidth=1X,2x gpt3-1.3B")
    assert tune not in listed(client, q="link_bandwidth")
    assert listed(client, q=tune) == [tune]
    assert listed(client, q="gpt3_1.3b") == []  # no wildcard of SQL
    tunes = good(client.get("/v1/tunes", params={"q": f"SEED {tune}"}))
    assert [one["id"] for one in tunes["items"]] == [tune]
    refused(client.get("/v1/jobs", params={"q": "x" * 101}), 422)


def test_any_kind_by_id(client: httpx.Client, made: list[Any]) -> None:
    for job in made:
        assert good(client.get(f"/v1/jobs/{job['id']}")) == good(client.get(job["links"]["self"]))
    refused(client.get("/v1/jobs/job_" + "0" * 32), 404)


def test_labels(client: httpx.Client, made: list[Any]) -> None:
    tune, path = made[0], f"/v1/jobs/{made[0]['id']}"
    assert tune["label"] is None
    assert good(client.patch(path, json={"label": "Für Montag"}))["label"] == "Für Montag"
    assert listed(client, q="montag FÜR") == [tune["id"]]
    assert good(client.get(tune["links"]["self"]))["label"] == "Für Montag"
    assert good(client.patch(path, json={"label": None}))["label"] is None
    assert listed(client, q="montag") == []


@pytest.mark.parametrize(
    "label", ["", " ", "a\nb", "\x1b]0;x", "a\u202eb", "x" * 101, 5, ["a"], "\x00"]
)
def test_what_is_no_label(client: httpx.Client, made: list[Any], label: Any) -> None:
    problem = refused(client.patch(f"/v1/jobs/{made[0]['id']}", json={"label": label}), 422)
    assert {fault["pointer"] for fault in problem["errors"]} == {"#/label"}


def test_labels_of_others(client: httpx.Client, made: list[Any]) -> None:
    refused(client.patch("/v1/jobs/job_" + "0" * 32, json={"label": "mine"}), 404)
    refused(client.patch(f"/v1/jobs/{made[0]['id']}", json={}), 422)
