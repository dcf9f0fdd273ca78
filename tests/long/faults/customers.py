"""Customers of a service that is killed: they submit jobs and measurements, remember everything
that the service acknowledged, and check in the end that nothing of it is lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import httpx

from domino_tune.requests import TuneRequest, WhatIfRequest
from domino_tune.service.work import Outcome
from domino_tune.service.work.kinds import run_job
from domino_tune.service.work.task import Task
from domino_tune.store.files import bundled_bytes
from domino_tune.store.shelf import load_model
from tests.support.processes import PATIENCE_S
from tests.support.tasks import SILENT

RETRIED: Final = (429, 503)
TINY: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "tp": 2, "seq_length": 256, "micro_batch_size": 2,
    "overrides": ["num_hidden_layers=6", "hidden_size=512", "num_attention_heads=8"],
}  # fmt: skip
BODIES: Final[dict[str, dict[str, Any]]] = {
    **{
        f"tune {seed}": {
            "kind": "tune", **TINY, "search": "random", "trials": 30 + seed, "seed": seed,
        }
        for seed in range(4)
    },
    **{
        f"sweep {number}": {
            "kind": "whatif", **TINY, "retune": True,
            "sweep": f"link_bandwidth=0.5x,{1 + number}.5x,{4 + number}x",
        }
        for number in range(2)
    },
}  # fmt: skip
"""Bodies of requests by kind and number."""


@cache
def expected_result(name: str) -> Outcome:
    """Return the result of the job ``name`` of BODIES, computed here, where nothing is killed."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in BODIES[name].items()
    }
    kind = values.pop("kind")
    request = TuneRequest(**values) if kind == "tune" else WhatIfRequest(**values)
    task = Task(
        kind=kind, request=request.model_dump(), models={TINY["model"]: load_model(TINY["model"])},
        profile=bundled_bytes(TINY["profile"]),
    )  # fmt: skip
    return run_job(task.to_bytes(), SILENT)


@dataclass(kw_only=True)
class AcknowledgedJob:
    """An acknowledged job, and the points and measurements that the service showed for it."""

    name: str
    path: str
    points: dict[int, Any] = field(default_factory=dict)
    measurements: set[str] = field(default_factory=set)


@dataclass(kw_only=True)
class Audit:
    """Counts of acknowledged things. ``lost`` and ``unequal`` must be empty."""

    jobs: int = 0
    points: int = 0
    measurements: int = 0
    lost: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)

    def add(self, other: Audit) -> None:
        """Add another audit to this one."""
        self.jobs += other.jobs
        self.points += other.points
        self.measurements += other.measurements
        self.lost += other.lost
        self.unequal += other.unequal


class Customers:
    """Clients of the service at ``url()``, which changes. A request that fails is sent again with
    the same idempotency key."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._http = httpx.Client(timeout=30)
        self._submitted = 0
        self.jobs: list[AcknowledgedJob] = []

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self) -> AcknowledgedJob:
        """Submit the next job of BODIES, and return it once it is acknowledged."""
        names = list(BODIES)
        name = names[self._submitted % len(names)]
        self._submitted += 1
        key = f"{name} {self._submitted}".replace(" ", "-")
        answer = self._request("POST", "/v1/jobs", BODIES[name], key)
        assert answer.status_code == 202, answer.text
        self.jobs.append(AcknowledgedJob(name=name, path=f"/v1/jobs/{answer.json()['id']}"))
        return self.jobs[-1]

    def get(self, job: AcknowledgedJob) -> dict[str, Any]:
        """Return the job as it is now. Remember the points that are shown: they must stay."""
        shown: dict[str, Any] = self._request("GET", job.path).json()
        if job.name.startswith("sweep"):
            points = self._request("GET", f"{job.path}/files/points").json()
            job.points |= {point["index"]: point for point in points["items"]}
        return shown

    def exists(self, job: AcknowledgedJob) -> bool:
        """Return whether the service knows the job."""
        return self._request("GET", job.path).status_code == 200

    def delete(self, job: AcknowledgedJob) -> None:
        """Delete the job, and forget it."""
        self._request("DELETE", job.path)
        self.jobs.remove(job)

    def report_measurement(self, job: AcknowledgedJob) -> None:
        """Report a measurement of a tune that is done."""
        simulated = self._request("GET", job.path).json()["result"]["best"]
        key = f"{job.path.rpartition('/')[2]}-{len(job.measurements)}"
        of = job.path.rpartition("/")[2]
        body = {"kind": "validate", "of": of, "result": measurement(simulated)}
        answer = self._request("POST", "/v1/jobs", body, key)
        assert answer.status_code == 200, answer.text
        job.measurements.add(answer.json()["id"])

    def unfinished(self) -> list[tuple[AcknowledgedJob, dict[str, Any]]]:
        """Return the jobs that have not ended, each with what the service shows for it now."""
        shown = [(job, self.get(job)) for job in self.jobs[-12:]]
        return [(job, plain) for job, plain in shown if plain["state"] in ("queued", "running")]

    def audit(self) -> Audit:
        """Wait until every job has ended. Compare it with what was acknowledged and what is
        expected.
        """
        audit = Audit()
        for job in self.jobs:
            shown = self._wait(job)
            audit.jobs += 1
            audit.points += len(job.points)
            audit.measurements += len(job.measurements)
            if shown.get("state") != "done":
                audit.lost.append(f"{job.path}: {shown.get('state')} {shown.get('error')}")
                continue
            self._compare(job, shown, audit)
        return audit

    def _compare(self, job: AcknowledgedJob, shown: dict[str, Any], audit: Audit) -> None:
        expected = expected_result(job.name)
        if _bytes(shown["result"]) != expected.result:
            audit.unequal.append(f"{job.path}: result")
        for name, body in expected.files.items():
            if self._request("GET", f"{job.path}/files/{name}").content != body:
                audit.unequal.append(f"{job.path}: {name}")
        if job.points:
            now = self._request("GET", f"{job.path}/files/points").json()["items"]
            final = {point["index"]: point for point in now}
            audit.lost += [
                f"{job.path}: point {index}"
                for index, point in job.points.items()
                if final.get(index) != point
            ]
        if job.measurements:
            wanted = f"kind=validate&of={job.path.rpartition('/')[2]}"
            found = self._request("GET", f"/v1/jobs?{wanted}").json()["items"]
            missing = job.measurements - {one["id"] for one in found}
            audit.lost += [f"{job.path}: measurement {one}" for one in missing]

    def _wait(self, job: AcknowledgedJob) -> dict[str, Any]:
        end_s = time.monotonic() + PATIENCE_S
        shown = self.get(job)
        while shown.get("state") in ("queued", "running") and time.monotonic() < end_s:
            time.sleep(0.1)
            shown = self.get(job)
        return shown

    def _request(
        self, method: str, path: str, body: Any = None, key: str | None = None
    ) -> httpx.Response:
        """Send a request until there is an answer. The service may be down, or limit the rate."""
        headers = {"Idempotency-Key": key} if key else {}
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = self._http.request(method, self._url() + path, json=body, headers=headers)
                if answer.status_code not in RETRIED:
                    assert answer.status_code < 500, answer.text
                    return answer
            except httpx.TransportError:
                pass
            assert time.monotonic() < end_s, f"no answer to {method} {path}"
            time.sleep(0.1)


def _bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def measurement(simulated: dict[str, Any]) -> dict[str, Any]:
    """Return the result of `validate` for a plan that takes twice its simulated time."""
    twice = 2 * simulated["iteration_ms"]

    def iteration(ms: float) -> dict[str, Any]:
        return {
            "iteration_ms": ms, "speedup": None, "comm_ms": None, "exposed_comm_ms": None,
            "hidden_comm_fraction": None, "peak_memory_gib": None,
        }  # fmt: skip

    plan = {
        "name": "plan.json", "plan": simulated["plan"],
        "predicted": iteration(simulated["iteration_ms"]), "measured": iteration(twice),
        "error": -0.5, "error_at_present_speed": None,
        "interval_ms": {"low": twice, "high": twice}, "spread_ms": 1.0, "loss": 10.0, "failed": "",
        "makespans_ms": [twice], "roles": [], "captured": False, "why_not_captured": "",
    }  # fmt: skip
    return {
        "plans": [plan], "max_error": None, "present_speed": None, "machine_differences": [],
        "warnings": [], "rounds": 10, "interrupted": False, "emulated_collectives": False,
        "backend": "nccl", "emulate_link_bits_per_s": None,
        **{name: simulated[name] for name in ("profile", "model", "workload", "cluster")},
    }  # fmt: skip
