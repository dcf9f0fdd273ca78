"""Every example of the API's documentation runs, and its answer is as the description says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from api.app import route_table
from api.openapi import EXAMPLES
from domino_tune.store.profiles import dump_profile, load_profile
from tests.support.asked import described, ended
from tests.support.service import serving


def test_every_example_runs(tmp_path: Path) -> None:
    routes = {one.name: one for one in route_table()}
    file = dump_profile(replace(load_profile("h100-dgx"), name="my-machine"))
    with serving(tmp_path) as service, service.client() as client:
        made = client.post("/v1/jobs", json=EXAMPLES["submit_job"].body)
        job = ended(client, made.headers["location"])
        for name in sorted(EXAMPLES, key=lambda one: one.startswith("delete")):
            example, route = EXAMPLES[name], routes[name]
            given = {"job_id": job["id"], **example.parameters}
            query = {key: one for key, one in given.items() if f"{{{key}}}" not in route.path}
            query.pop("job_id", None)
            body: Any = file if example.file else example.body
            how = {"json": body} if isinstance(body, dict) else {"content": body}
            kind = route.body.media_types[0] if route.body else "text/plain"
            answer = client.request(
                route.method, route.path.format(**given), params=query,
                headers={"Content-Type": kind}, **how,
            )  # fmt: skip
            assert answer.is_success, (name, answer.text)
            described(answer)
