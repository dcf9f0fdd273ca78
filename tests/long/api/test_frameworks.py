"""What each framework can run of a tune, against what it is when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.asked import CELL, ended, good
from tests.support.service import serving


def test_what_frameworks_run_is_said_beside_it(tmp_path: Path) -> None:
    with serving(tmp_path) as service, service.client() as client:
        asked = {**CELL, "seq_length": 2048, "micro_batch_size": 8}
        found = ended(
            client,
            good(client.post("/v1/jobs", json={"kind": "tune", **asked}), 202)["links"]["self"],
        )
        there = {one["framework"]: one for one in found["result"]["frameworks"]}
        assert list(there) == ["Megatron-LM", "DeepSpeed"]
        for one in there.values():
            assert not one["runs_best"]
            speedup = found["result"]["baseline_ms"] / one["iteration_ms"]
            assert one["speedup"] == pytest.approx(speedup, abs=1e-5)
        rival, own = there["Megatron-LM"], there["DeepSpeed"]
        assert rival["route"] == "simulations"
        same = good(client.post("/v1/simulations", json={**asked, **rival["request"]}))
        assert (same["plan"], same["iteration_ms"]) == (rival["plan"], rival["iteration_ms"])
        assert (own["route"], own["request"]["target"]) == ("tunes", "deepspeed")
        made = good(client.post("/v1/jobs", json={"kind": "tune", **asked, **own["request"]}), 202)
        job = ended(client, made["links"]["self"])
        best = job["result"]["best"]
        assert (best["plan"], best["iteration_ms"]) == (own["plan"], own["iteration_ms"])
        again = {one["framework"]: one for one in job["result"]["frameworks"]}["DeepSpeed"]
        assert again["runs_best"]
        assert again["plan"] == best["plan"]
