"""Customers of a service that is being killed: they hand in jobs and measurements, and keep what
was acknowledged, to hold the service to it in the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import httpx

from domino_tune.requests import TuneRequest, WhatIfRequest
from domino_tune.service import work
from domino_tune.service.quantum import Reply
from domino_tune.service.task import Task
from domino_tune.store.shelf import DISK

PATIENCE_S: Final = 300
ASKED_AGAIN: Final = (429, 503)
TINY: Final[dict[str, Any]] = {
    "model": "gpt3-1.3b", "profile": "h100-dgx", "tp": 2, "seq_length": 256, "micro_batch_size": 2,
    "overrides": ["num_hidden_layers=6", "hidden_size=512", "num_attention_heads=8"],
}  # fmt: skip
ASKED: Final[dict[str, dict[str, Any]]] = {
    **{
        f"tunes {seed}": {**TINY, "search": "random", "trials": 30 + seed, "seed": seed}
        for seed in range(4)
    },
    **{
        f"sweeps {number}": {
            **TINY, "sweep": f"link_bandwidth=0.5x,{1 + number}.5x,{4 + number}x", "retune": True,
        }
        for number in range(2)
    },
}  # fmt: skip
"""What is asked, by route and number."""
Call = Callable[[], httpx.Response]


@cache
def undisturbed(name: str) -> Reply:
    """What comes of a question when nothing is killed, computed here."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in ASKED[name].items()
    }
    kind, request = (
        ("tune", TuneRequest(**values))
        if name.startswith("tunes")
        else ("sweep", WhatIfRequest(**values))
    )
    task, state = Task.of(kind, request, DISK).to_bytes(), work.resume()
    while (reply := work.advance(task, state, 1e9)).result is None:
        state = reply.state
    return reply


@dataclass(kw_only=True)
class Promised:
    """An acknowledged job, and what else the service said of it."""

    name: str
    path: str
    points: dict[int, Any] = field(default_factory=dict)
    measurements: set[str] = field(default_factory=set)


@dataclass(kw_only=True)
class Kept:
    """How the service kept its promises; ``lost`` and ``unequal`` should be empty."""

    jobs: int = 0
    points: int = 0
    measurements: int = 0
    lost: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)

    def add(self, other: Kept) -> None:
        """Count another's too."""
        self.jobs += other.jobs
        self.points += other.points
        self.measurements += other.measurements
        self.lost += other.lost
        self.unequal += other.unequal


class Customers:
    """Talk to the service at ``url()``, which changes; what fails on the way is asked again, under
    the same idempotency key."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._http = httpx.Client(timeout=30)
        self._handed_in = 0
        self.promised: list[Promised] = []

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def hand_in(self) -> Promised:
        """One more job, acknowledged."""
        names = list(ASKED)
        name = names[self._handed_in % len(names)]
        self._handed_in += 1
        route = name.split()[0]
        key = f"{name} {self._handed_in}".replace(" ", "-")
        answer = self._ask("POST", f"/v1/{route}", ASKED[name], key)
        assert answer.status_code == 202, answer.text
        self.promised.append(Promised(name=name, path=f"/v1/{route}/{answer.json()['id']}"))
        return self.promised[-1]

    def look(self, job: Promised) -> dict[str, Any]:
        """The job as it is now; points of it that are shown now must stay."""
        plain: dict[str, Any] = self._ask("GET", job.path).json()
        if job.name.startswith("sweeps"):
            shown = self._ask("GET", f"{job.path}/points?limit=100").json()
            job.points |= {point["index"]: point for point in shown["items"]}
        return plain

    def is_there(self, job: Promised) -> bool:
        """Whether the service knows the job."""
        return self._ask("GET", job.path).status_code == 200

    def call_off(self, job: Promised) -> None:
        """Nobody waits for it any more."""
        self._ask("DELETE", job.path)

    def measure(self, job: Promised) -> None:
        """Report a measurement of a tune that is done."""
        simulated = self._ask("GET", job.path).json()["result"]["simulation"]
        key = f"{job.path.rpartition('/')[2]}-{len(job.measurements)}"
        answer = self._ask("POST", f"{job.path}/validations", measurement(simulated), key)
        assert answer.status_code in (200, 201), answer.text
        job.measurements.add(answer.json()["id"])

    def unfinished(self) -> list[tuple[Promised, dict[str, Any]]]:
        """Jobs that have not ended, as they are now."""
        looked = [(job, self.look(job)) for job in self.promised[-12:]]
        return [(job, plain) for job, plain in looked if plain["state"] in ("queued", "running")]

    def hold_to_it(self) -> Kept:
        """Wait until every job has ended; count what is lost, or not as it would be undisturbed."""
        kept = Kept()
        for job in self.promised:
            plain = self._wait(job)
            kept.jobs += 1
            kept.points += len(job.points)
            kept.measurements += len(job.measurements)
            if plain.get("state") != "done":
                kept.lost.append(f"{job.path}: {plain.get('state')} {plain.get('error')}")
                continue
            self._compare(job, plain, kept)
        return kept

    def _compare(self, job: Promised, plain: dict[str, Any], kept: Kept) -> None:
        expected = undisturbed(job.name)
        if _bytes(plain["result"]) != expected.result:
            kept.unequal.append(f"{job.path}: result")
        for name, body in expected.artifacts.items():
            if self._ask("GET", f"{job.path}/{name}").content != body:
                kept.unequal.append(f"{job.path}: {name}")
        if job.points:
            now = self._ask("GET", f"{job.path}/points?limit=100").json()["items"]
            final = {point["index"]: point for point in now}
            kept.lost += [
                f"{job.path}: point {index}"
                for index, point in job.points.items()
                if final.get(index) != point
            ]
        if job.measurements:
            found = self._ask("GET", f"{job.path}/validations?limit=20").json()["items"]
            missing = job.measurements - {one["id"] for one in found}
            kept.lost += [f"{job.path}: measurement {one}" for one in missing]

    def _wait(self, job: Promised) -> dict[str, Any]:
        end_s = time.monotonic() + PATIENCE_S
        plain = self.look(job)
        while plain.get("state") in ("queued", "running") and time.monotonic() < end_s:
            time.sleep(0.1)
            plain = self.look(job)
        return plain

    def _ask(
        self, method: str, path: str, body: Any = None, key: str | None = None
    ) -> httpx.Response:
        """Ask until there is an answer; the service may be gone, or say that this is too often."""
        headers = {"Idempotency-Key": key} if key else {}
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = self._http.request(method, self._url() + path, json=body, headers=headers)
                if answer.status_code not in ASKED_AGAIN:
                    assert answer.status_code < 500, answer.text
                    return answer
            except httpx.TransportError:
                pass
            assert time.monotonic() < end_s, f"no answer to {method} {path}"
            time.sleep(0.1)


def _bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def measurement(simulated: dict[str, Any]) -> dict[str, Any]:
    """What `validate` would say had the tune's plan taken twice its time."""
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
