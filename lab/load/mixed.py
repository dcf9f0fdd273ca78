"""Mixed traffic: all that users and the web page do, at the same time, for minutes."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from lab.load import bodies
from lab.load.process import Service
from lab.load.traffic import Visitor, call_at_rate

Visit = Callable[[Visitor, int, float], Awaitable[None]]
POLL_S: Final = 0.5
JOB_TIMEOUT_S: Final = 120.0
TRIALS: Final = 20
WARM_UP: Final = 0.2
"""Share of the time in which caches and pools fill. Memory is compared after it."""
WINDOW: Final = 0.1
"""Share of the time over which the median of memory is taken, after the warm-up and at the end."""


async def traffic(visitor: Visitor, seconds: float) -> None:
    """Send all kinds of requests for ``seconds``, each kind at its own rate."""
    kinds = (
        (visit_simulation, 5.0),
        (visit_what_if, 1.0),
        (visit_health, 2.0),
        (visit_lists, 0.5),
        (visit_tune, 0.05),
        (visit_cancel, 0.05),
        (visit_sweep, 0.1),
        (visit_profile, 0.1),
    )
    await asyncio.gather(
        *(call_at_rate(partial(kind, visitor), per_s, seconds) for kind, per_s in kinds)
    )


def getting(kind: str, *paths: str) -> Visit:
    """Return what requests one of ``paths``, in turn."""

    async def visit(visitor: Visitor, number: int, due_s: float) -> None:
        await visitor.ask(kind, "GET", paths[number % len(paths)], due_s=due_s)

    return visit


def posting(kind: str, path: str, body: Callable[[int], Any]) -> Visit:
    """Return what sends the body of each number."""

    async def visit(visitor: Visitor, number: int, due_s: float) -> None:
        await visitor.ask(kind, "POST", "/v1/jobs", json=body(number), due_s=due_s)

    return visit


visit_simulation = posting("simulation", "/v1/simulations", lambda number: bodies.CACHED)
visit_what_if = posting("what-if", "/v1/what-ifs", bodies.what_if)
visit_health = getting("health", "/healthz", "/healthz", "/readyz", "/metrics", "/")
visit_lists = getting("list", "/v1/jobs?kind=tune", "/v1/jobs", "/v1/profiles", "/v1/models")


async def visit_tune(visitor: Visitor, number: int, due_s: float) -> None:
    """Start a tune, wait for it, and request all its files."""
    body = bodies.tune(seed=number, trials=TRIALS)
    job = await start_job(visitor, "tune", body, number, due_s)
    if job is None or not await is_done(visitor, "tune", job):
        return
    path = f"/v1/jobs/{job['id']}"
    files = ("plan", "plan?to=megatron", "report", "trace")
    for part in (*(f"/files/{name}" for name in files), "/events"):
        await visitor.ask("tune's files", "GET", path + part)


async def visit_cancel(visitor: Visitor, number: int, due_s: float) -> None:
    """Start a long tune and delete it."""
    body = bodies.tune(seed=number, trials=bodies.ENDLESS_TRIALS)
    job = await start_job(visitor, "cancel", body, number, due_s)
    if job is not None:
        await asyncio.sleep(1.0)
        await visitor.ask("cancel", "DELETE", f"/v1/jobs/{job['id']}")


async def visit_sweep(visitor: Visitor, number: int, due_s: float) -> None:
    """Start a sweep, wait for it, and request its points."""
    job = await start_job(visitor, "sweep", bodies.sweep(number), number, due_s)
    if job is not None and await is_done(visitor, "sweep", job):
        await visitor.ask("sweep", "GET", f"/v1/jobs/{job['id']}/files/points")


async def visit_profile(visitor: Visitor, number: int, due_s: float) -> None:
    """Read a bundled profile and upload a copy of it."""
    await visitor.ask("profile", "GET", f"/v1/profiles/{bodies.BUNDLED}", due_s=due_s)
    name = f"copy-{number % 3}"
    body = bodies.profile(name)
    await visitor.ask("profile", "PUT", f"/v1/profiles/{name}", content=body, headers=bodies.JSON)


async def start_job(
    visitor: Visitor, kind: str, body: Any, number: int, due_s: float
) -> dict[str, Any] | None:
    """Start a job. Return it, or None when the service refused."""
    headers = {"Idempotency-Key": f"load-{kind}-{number}"}
    answer = await visitor.ask(kind, "POST", "/v1/jobs", json=body, headers=headers, due_s=due_s)
    return None if answer.is_error else json.loads(answer.body)


async def is_done(visitor: Visitor, kind: str, job: dict[str, Any]) -> bool:
    """Wait until the job has ended. Return whether it is done; if not, record an error."""
    end = time.monotonic() + JOB_TIMEOUT_S
    while job["state"] in ("queued", "running") and time.monotonic() < end:
        await asyncio.sleep(POLL_S)
        path = f"/v1/jobs/{job['id']}"
        answer = await visitor.ask(f"{kind}'s progress", "GET", path)
        if answer.is_error:
            return False
        job = json.loads(answer.body)
    if job["state"] == "done":
        return True
    visitor.record_error(kind, f"{job['id']} ended {job['state']}: {job['error']}")
    return False


async def watch_memory(service: Service, seconds: float) -> list[int]:
    """Return the resident bytes of the service and its workers, once a second."""
    end = time.monotonic() + seconds
    samples = []
    while time.monotonic() < end:
        samples.append(service.rss_bytes())
        await asyncio.sleep(min(1.0, seconds / 20))
    return samples


def growth(samples: Sequence[int]) -> float:
    """Return the growth of memory from the end of the warm-up to the end, as a fraction."""
    first, width = int(WARM_UP * len(samples)), max(1, int(WINDOW * len(samples)))
    before = statistics.median(samples[first : first + width])
    return statistics.median(samples[-width:]) / before - 1
