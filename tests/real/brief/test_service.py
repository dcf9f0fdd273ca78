"""A service: ready, a tune from the request to its plan file, and the end on SIGTERM."""

from __future__ import annotations

from pathlib import Path

import pytest

from domino_tune.store.plans import load_plan
from tests.support.asked import SMALL, ended, good
from tests.support.service import serving


def test_a_tune_comes_to_its_plan_file(tmp_path: Path) -> None:
    with serving(tmp_path) as service, service.client() as client:
        for path in ("/healthz", "/readyz"):
            assert good(client.get(path)) == {"status": "ok"}
        links = good(client.post("/v1/jobs", json={"kind": "tune", **SMALL}), 202)["links"]
        job = ended(client, links["self"])
        assert job["state"] == "done", job
        file = tmp_path / "plan.json"
        file.write_bytes(client.get(links["files"].format(name="plan")).content)
        best = job["result"]["best"]["iteration_ms"]
        assert load_plan(file).predicted.iteration_ms == pytest.approx(best)
        assert service.stop() == 0
