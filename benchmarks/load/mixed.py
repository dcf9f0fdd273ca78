"""Mixed traffic: everything that users and the page do, side by side, for minutes."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from benchmarks.load import bodies
from benchmarks.load.process import Service
from benchmarks.load.traffic import Visitor, paced

POLL_S: Final = 0.5
JOB_PATIENCE_S: Final = 120.0
TRIALS: Final = 20
WARM_UP: Final = 0.2
"""Share of the time in which caches and pools fill; memory is compared after it."""
WINDOW: Final = 0.1
"""Share of the time over which memory's median is taken, after the warm-up and at the end."""


async def traffic(visitor: Visitor, seconds: float) -> None:
    """All kinds at once, each at its own pace."""
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
    await asyncio.gather(*(paced(partial(kind, visitor), per_s, seconds) for kind, per_s in kinds))


async def visit_simulation(visitor: Visitor, number: int, due_s: float) -> None:
    """One simulation."""
    await visitor.ask("simulation", "POST", "/v1/simulations", json=bodies.CACHED, due_s=due_s)


async def visit_what_if(visitor: Visitor, number: int, due_s: float) -> None:
    """One what-if."""
    body = bodies.what_if(number)
    await visitor.ask("what-if", "POST", "/v1/what-ifs", json=body, due_s=due_s)


async def visit_health(visitor: Visitor, number: int, due_s: float) -> None:
    """Liveness, and now and then readiness, metrics and the page."""
    path = ("/healthz", "/healthz", "/readyz", "/metrics", "/")[number % 5]
    await visitor.ask("health", "GET", path, due_s=due_s)


async def visit_lists(visitor: Visitor, number: int, due_s: float) -> None:
    """What the page lists."""
    path = ("/v1/tunes", "/v1/sweeps", "/v1/profiles", "/v1/models")[number % 4]
    await visitor.ask("list", "GET", path, due_s=due_s)


async def visit_tune(visitor: Visitor, number: int, due_s: float) -> None:
    """Ask for a tune, wait for it, take all that came of it."""
    body = bodies.tune(seed=number, trials=TRIALS)
    job = await make(visitor, "tune", "/v1/tunes", body, number, due_s)
    if job is None or not await done(visitor, "tune", job):
        return
    path = f"/v1/tunes/{job['id']}"
    for part in ("/plan", "/plan?to=megatron", "/report", "/trace", "/events"):
        await visitor.ask("tune's files", "GET", path + part)


async def visit_cancel(visitor: Visitor, number: int, due_s: float) -> None:
    """Ask for a long tune and cancel it."""
    body = bodies.tune(seed=number, trials=bodies.ENDLESS_TRIALS)
    job = await make(visitor, "cancel", "/v1/tunes", body, number, due_s)
    if job is not None:
        await asyncio.sleep(1.0)
        await visitor.ask("cancel", "DELETE", f"/v1/tunes/{job['id']}")


async def visit_sweep(visitor: Visitor, number: int, due_s: float) -> None:
    """Ask for a sweep, wait for it, take its points."""
    job = await make(visitor, "sweep", "/v1/sweeps", bodies.sweep(number), number, due_s)
    if job is not None and await done(visitor, "sweep", job):
        await visitor.ask("sweep", "GET", f"/v1/sweeps/{job['id']}/points")


async def visit_profile(visitor: Visitor, number: int, due_s: float) -> None:
    """Read a bundled profile and keep a copy of it."""
    await visitor.ask("profile", "GET", f"/v1/profiles/{bodies.BUNDLED}", due_s=due_s)
    name = f"copy-{number % 3}"
    headers = {"Content-Type": "application/json"}
    body = bodies.profile(name)
    await visitor.ask("profile", "PUT", f"/v1/profiles/{name}", content=body, headers=headers)


async def make(
    visitor: Visitor, kind: str, path: str, body: Any, number: int, due_s: float
) -> dict[str, Any] | None:
    """The job made of ``body``; None where the service refused."""
    headers = {"Idempotency-Key": f"load-{kind}-{number}"}
    made = await visitor.ask(kind, "POST", path, json=body, headers=headers, due_s=due_s)
    return None if made.is_error else json.loads(made.body)


async def done(visitor: Visitor, kind: str, job: dict[str, Any]) -> bool:
    """Wait until the job has ended; whether it is done. Anything else is noted as an error."""
    end = time.monotonic() + JOB_PATIENCE_S
    while job["state"] in ("queued", "running") and time.monotonic() < end:
        await asyncio.sleep(POLL_S)
        path = f"/v1/{job['kind']}s/{job['id']}"
        answer = await visitor.ask(f"{kind}'s progress", "GET", path)
        if answer.is_error:
            return False
        job = json.loads(answer.body)
    if job["state"] == "done":
        return True
    visitor.failed(kind, f"{job['id']} ended {job['state']}: {job['error']}")
    return False


async def watch_memory(service: Service, seconds: float) -> list[int]:
    """Resident bytes of the service and its workers, once a second."""
    end = time.monotonic() + seconds
    samples = []
    while time.monotonic() < end:
        samples.append(service.rss_bytes())
        await asyncio.sleep(min(1.0, seconds / 20))
    return samples


def growth(samples: Sequence[int]) -> float:
    """How much memory grew from the end of the warm-up to the end, as a fraction."""
    after, width = int(WARM_UP * len(samples)), max(1, int(WINDOW * len(samples)))
    before = statistics.median(samples[after : after + width])
    return statistics.median(samples[-width:]) / before - 1
