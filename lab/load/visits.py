"""Visits: what users and the web page do, as one request or a job from its start to its end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from lab.load import bodies
from lab.load.traffic import NO_ANSWER, Visitor

Visit = Callable[[Visitor, int, float], Awaitable[object]]
"""Takes its number and when it is due (monotonic clock)."""
POLL_S: Final = 0.5
JOB_TIMEOUT_S: Final = 900.0
"""Limit that only guards against hanging: jobs yield the cores to all other work on the machine."""
TRIALS: Final = 20
FILES: Final = (
    "/files/plan", "/files/plan?to=megatron", "/files/report", "/files/trace", "/events",
)  # fmt: skip


def getting(kind: str, *paths: str) -> Visit:
    """Return what requests one of ``paths``, in turn."""
    return lambda visitor, number, due_s: visitor.ask(
        kind, "GET", paths[number % len(paths)], due_s=due_s
    )


def posting(kind: str, path: str, body: Callable[[int], Any]) -> Visit:
    """Return what sends the body of each number."""
    return lambda visitor, number, due_s: visitor.ask(
        kind, "POST", path, json=body(number), due_s=due_s
    )


async def tune(visitor: Visitor, number: int, due_s: float) -> None:
    """Start a tune, wait for it, and request all its files."""
    body = bodies.tune(seed=number, trials=TRIALS)
    if job := await done(visitor, "tune", body, number, due_s):
        for part in FILES:
            await visitor.ask("tune's files", "GET", f"/v1/jobs/{job}{part}")


async def cancel(visitor: Visitor, number: int, due_s: float) -> None:
    """Start a long tune and delete it."""
    body = bodies.tune(seed=number, trials=bodies.ENDLESS_TRIALS)
    if job := await start(visitor, "cancel", body, number, due_s):
        await asyncio.sleep(1.0)
        await visitor.ask("cancel", "DELETE", f"/v1/jobs/{job}")


async def sweep(visitor: Visitor, number: int, due_s: float) -> None:
    """Start a sweep, wait for it, and request its points."""
    if job := await done(visitor, "sweep", bodies.sweep(number), number, due_s):
        await visitor.ask("sweep", "GET", f"/v1/jobs/{job}/files/points")


async def profile(visitor: Visitor, number: int, due_s: float) -> None:
    """Read a bundled profile and upload a copy of it."""
    await visitor.ask("profile", "GET", f"/v1/profiles/{bodies.BUNDLED}", due_s=due_s)
    path, body = f"/v1/profiles/copy-{number % 3}", bodies.profile(f"copy-{number % 3}")
    await visitor.ask("profile", "PUT", path, content=body, headers=bodies.JSON)


async def start(visitor: Visitor, kind: str, body: Any, number: int, due_s: float) -> str:
    """Start a job. Return its id, or nothing when the service refused."""
    headers = {"Idempotency-Key": f"load-{kind}-{number}"}
    answer = await visitor.ask(kind, "POST", "/v1/jobs", json=body, headers=headers, due_s=due_s)
    return "" if answer.is_error else str(json.loads(answer.body)["id"])


async def look(visitor: Visitor, kind: str, job: str) -> dict[str, Any]:
    """Request a job and return it; an empty one where there is no answer."""
    answer = await visitor.ask(f"{kind}'s progress", "GET", f"/v1/jobs/{job}")
    found: dict[str, Any] = {} if answer.is_error else json.loads(answer.body)
    return found


async def done(visitor: Visitor, kind: str, body: Any, number: int, due_s: float) -> str:
    """Start a job and wait until it has ended; record how long it took. Return its id if it is
    done; else record an error."""
    job, end = await start(visitor, kind, body, number, due_s), time.monotonic() + JOB_TIMEOUT_S
    shown: dict[str, Any] = {"state": "queued"} if job else {}
    while shown and shown["state"] in ("queued", "running") and time.monotonic() < end:
        await asyncio.sleep(POLL_S)
        shown = await look(visitor, kind, job)
    if shown and shown["state"] != "done":
        visitor.record(kind, f"{job} ended {shown['state']}: {shown['error']}", status=NO_ANSWER)
    if shown.get("state") != "done":
        return ""
    visitor.record(f"{kind}, until it is done", took_s=time.monotonic() - due_s)
    return job


simulation: Final = posting("simulation", "/v1/simulations", lambda number: bodies.CACHED)
what_if: Final = posting("what-if", "/v1/what-ifs", bodies.what_if)
healthz: Final = getting("healthz", "/healthz")
MIXED: Final[tuple[tuple[Visit, float], ...]] = (
    (simulation, 5.0),
    (what_if, 1.0),
    (getting("health", "/healthz", "/healthz", "/readyz", "/metrics", "/"), 2.0),
    (getting("list", "/v1/jobs?kind=tune", "/v1/jobs", "/v1/profiles", "/v1/models"), 0.5),
    (tune, 0.05),
    (cancel, 0.05),
    (sweep, 0.1),
    (profile, 0.1),
)
"""All of it at the same time, each so many times a second."""
