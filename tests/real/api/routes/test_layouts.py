"""Searches of layouts, at one number of GPUs and at several: points, what does not fit."""

from __future__ import annotations

import httpx
import pytest

from tests.real.api.routes.asking import best_so_far
from tests.real.api.routes.conftest import Jobs
from tests.real.api.routes.kinds import KINDS
from tests.support.asked import LAYOUTS, ended, good, refused


def test_layouts_that_cannot_fit_are_told_at_once_what_would(client: httpx.Client) -> None:
    asked = {**LAYOUTS, "model": "gpt3-175b", "overrides": [], "gpus": 8, "global_batch_size": 512}
    problem = refused(client.post("/v1/layouts", json=asked), 422)
    assert (problem["title"], problem["reason"]) == ("Infeasible plan", "memory")
    assert problem["change"]["gpus"] > 8
    assert f"gpus = {problem['change']['gpus']}" in problem["detail"]


def test_one_that_is_stopped_has_no_rivals(client: httpx.Client) -> None:
    place = client.post("/v1/layouts", json=KINDS["layout"].long).headers["location"]
    told = best_so_far(client, place)
    assert told["progress"]["done"] > 0
    assert told["best"]["iteration_ms"] > 0
    assert not {"domino_gain", "domino_gain_here"} & set(told["best"])
    good(client.post(f"{place}/finish"))
    job = ended(client, place)
    result = job["result"]
    assert (job["state"], job["stopped_by"], result["stopped_by"]) == ("done", "user", "user")
    assert (result["optimality"], result["best_without_domino"]) == ("best_found", None)
    assert result["layouts"][0]["domino_gain"] is None
    assert result["simulation"]["speedup"] > 0


def test_a_scale_that_is_stopped_keeps_its_points(client: httpx.Client) -> None:
    place = client.post("/v1/scales", json=KINDS["scale"].long).headers["location"]
    good(client.post(f"{place}/finish"))
    job = ended(client, place)
    assert (job["state"], job["stopped_by"]) == ("done", "user")
    assert 1 <= len(job["result"]["points"]) < 4


@pytest.mark.parametrize("kind", ["scale", "sweep"])
def test_points_come_one_by_one(client: httpx.Client, jobs: Jobs, kind: str) -> None:
    done = jobs.done(kind)
    place = done["links"]["points"]
    page = good(client.get(place, params={"limit": 2}))
    rest = good(client.get(place, params={"cursor": page["next"]}))
    items = [*page["items"], *rest["items"]]
    assert rest["next"] is None
    assert items == good(client.get(place))["items"]
    assert [one["index"] for one in items] == [0, 1, 2]
    assert [one["point"] for one in items] == done["result"]["points"]


def test_a_number_without_a_layout_is_a_point(jobs: Jobs) -> None:
    points = jobs.done("scale")["result"]["points"]
    assert [one["layout"] is None for one in points] == [False, True, False]
