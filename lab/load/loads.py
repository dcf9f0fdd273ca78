"""Loads: each sends requests to a new service, and returns a table of numbers and targets."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from domino_tune.base.tables import Table
from lab.load import bodies, mixed
from lab.load.memory import DEPLOYED_BYTES, limited
from lab.load.process import Service
from lab.load.traffic import Visitor, call_at_rate, latency_ms, open_visitor
from lab.verdict import Check, at_most, check_table, equal, reported

SIMULATIONS_PER_S: Final = 50.0
SIMULATION_MS: Final = 50.0
HEALTH_PER_S: Final = 50.0
HEALTH_MS: Final = 50.0
TUNES: Final = 8
WHAT_IFS_PER_S: Final = 4.0
WHAT_IF_MS: Final = 200.0
MAX_GROWTH: Final = 0.05
WARM_UP_REQUESTS: Final = 20
SHORT_S: Final = 120.0
"""Before that a mixed load has not filled caches and pools."""
START_TIMEOUT_S: Final = 60.0
MAX_STOP_S: Final = 10.0
MIB: Final = 1 << 20
BODIES: Final = 60
JUNK_MIB: Final = 100.0
SAMPLE_S: Final = 0.05
Drive = Callable[[Visitor], Awaitable[list[Check]]]
visit_healthz: Final = mixed.getting("healthz", "/healthz")


class Duration(NamedTuple):
    """Durations of loads: ``mixed_s`` of the mixed one, ``each_s`` of each other one."""

    each_s: float
    mixed_s: float


def steady(
    kind: str, visit: mixed.Visit, per_s: float, limit_ms: float, title: str,
    service: Service, duration: Duration,
) -> Table:  # fmt: skip
    """Send some requests as a warm-up, then ``per_s`` requests a second. Return their latencies."""

    async def drive(visitor: Visitor) -> list[Check]:
        for number in range(WARM_UP_REQUESTS):
            await visit(visitor, number, time.monotonic())
        visitor.answers[kind] = [one for one in visitor.answers[kind] if one.is_error]

        async def call(number: int, due_s: float) -> None:
            await visit(visitor, WARM_UP_REQUESTS + number, due_s)

        await call_at_rate(call, per_s, duration.each_s)
        return latency_checks(visitor, kind, 0.95, limit_ms)

    return run_load(service, title, drive)


def healthz(service: Service, duration: Duration) -> Table:
    """Request liveness while eight tunes run. They still run when the service is stopped."""

    async def drive(visitor: Visitor) -> list[Check]:
        endless = [bodies.tune(seed, bodies.ENDLESS_TRIALS) for seed in range(TUNES)]
        started = [
            await mixed.start_job(visitor, "tune", body, seed, time.monotonic())
            for seed, body in enumerate(endless)
        ]
        jobs = [job["id"] for job in started if job]
        await wait_until_running(visitor, jobs)
        await call_at_rate(partial(visit_healthz, visitor), HEALTH_PER_S, duration.each_s)
        ended = [(await get_tune(visitor, job))["state"] for job in jobs]
        states = Counter(ended).most_common()
        return [
            *latency_checks(visitor, "healthz", 0.99, HEALTH_MS),
            reported("tunes at the end", ", ".join(f"{n} {state}" for state, n in states)),
        ]

    title = f"/healthz {HEALTH_PER_S:g} times a second beside {TUNES} tunes"
    return run_load(service, title, drive)


def mixture(service: Service, duration: Duration) -> Table:
    """Send mixed traffic. Return errors, memory and latencies."""

    async def drive(visitor: Visitor) -> list[Check]:
        memory = asyncio.create_task(mixed.watch_memory(service, duration.mixed_s))
        await mixed.traffic(visitor, duration.mixed_s)
        times = [
            reported(f"{kind}: {len(answers)} answers, p95", f"{latency_ms(answers, 0.95):.0f} ms")
            for kind, answers in visitor.answers.items()
        ]
        return [*memory_checks(await memory, duration), *times]

    return run_load(service, f"Mixed load, {duration.mixed_s / 60:.3g} minutes", drive)


def junk(service: Service, duration: Duration) -> Table:
    """Send many bodies of 1 MiB at once, each of 349,000 objects, beside requests for liveness."""
    body = b'{"model":[' + b"{}," * 349_000 + b"1]}"

    async def drive(visitor: Visitor) -> list[Check]:
        for number in range(WARM_UP_REQUESTS):  # workers import what they need
            await mixed.visit_simulation(visitor, number, time.monotonic())
        before = service.rss_bytes()
        sizes = [before]

        async def sample() -> None:
            while True:
                sizes.append(service.rss_bytes())
                await asyncio.sleep(SAMPLE_S)

        memory = asyncio.create_task(sample())
        asked = asyncio.create_task(
            call_at_rate(partial(visit_healthz, visitor), HEALTH_PER_S, duration.each_s)
        )
        sent = (
            visitor.client.post("/v1/simulations", content=body, headers=bodies.JSON)
            for _ in range(BODIES)
        )
        statuses = Counter(answer.status_code for answer in await asyncio.gather(*sent))
        await asked
        memory.cancel()
        grown = (max(sizes) - before) / MIB
        return [
            Check(
                what="answers", target="400–499", ok=all(400 <= one < 500 for one in statuses),
                measured=", ".join(f"{count} × {status}" for status, count in statuses.items()),
            ),
            at_most("growth of memory, with workers, at its peak", JUNK_MIB, grown, "MiB", 0),
            reported("healthz meanwhile, slowest",
                     f"{latency_ms(visitor.answers['healthz'], 1.0):.0f} ms"),
        ]  # fmt: skip

    return run_load(service, f"{BODIES} bodies of 1 MiB that hold 349,000 objects", drive)


LOADS: Final[dict[str, Callable[[Service, Duration], Table]]] = {
    "simulations": partial(
        steady, "simulation", mixed.visit_simulation, SIMULATIONS_PER_S, SIMULATION_MS,
        f"{SIMULATIONS_PER_S:g} simulations a second of a workload simulated before",
    ),
    "whatif": partial(
        steady, "what-if", mixed.visit_what_if, WHAT_IFS_PER_S, WHAT_IF_MS,
        f"GPT-3 13B, {WHAT_IFS_PER_S:g} what-ifs a second, each with another link bandwidth",
    ),
    "healthz": healthz,
    "junk": junk,
    "mixed": mixture,
}  # fmt: skip


def run_load(service: Service, title: str, drive: Drive) -> Table:
    """Run ``drive`` and stop the service. Return the checks of both, and of errors."""

    async def run() -> tuple[list[Check], list[str]]:
        visitor = open_visitor(service.url)
        async with visitor.client:
            return await drive(visitor), visitor.errors()

    checks, errors = asyncio.run(run())
    stopped_s = time.monotonic()
    code = service.stop()
    checks += [
        equal("errors", 0, len(errors)),
        equal("exit code after SIGTERM", 0, code),
        at_most("time from SIGTERM to exit", MAX_STOP_S, time.monotonic() - stopped_s, "s", 1),
    ]
    return check_table(title, checks, notes=errors[:10])


def latency_checks(visitor: Visitor, kind: str, share: float, limit_ms: float) -> list[Check]:
    """Return a percentile with a target, the median, and the slowest answer."""
    answers = visitor.answers[kind]
    p = f"p{100 * share:g}"
    return [
        at_most(f"{kind}, {p} of {len(answers)}", limit_ms, latency_ms(answers, share), "ms", 1),
        reported(f"{kind}, median", f"{latency_ms(answers, 0.5):.1f} ms"),
        reported(f"{kind}, slowest", f"{latency_ms(answers, 1.0):.1f} ms"),
    ]


def memory_checks(samples: Sequence[int], duration: Duration) -> list[Check]:
    """Return the growth of resident memory. It has no target where the load was short."""
    grown, last = mixed.growth(samples), samples[-1] / MIB
    what = f"growth of memory after the first {100 * mixed.WARM_UP:g} % of the time"
    size = reported("memory at the end, with workers", f"{last:.0f} MiB")
    if duration.mixed_s < SHORT_S:
        return [reported(what, f"{100 * grown:.2f}%"), size]
    return [at_most(what, MAX_GROWTH, grown), size]


async def wait_until_running(visitor: Visitor, jobs: Sequence[str]) -> None:
    """Wait until a tune has made progress, at most a minute."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        tunes = [await get_tune(visitor, job) for job in jobs]
        if any(one["state"] == "running" and one["progress"]["done"] for one in tunes):
            return
        await asyncio.sleep(0.2)


async def get_tune(visitor: Visitor, job: str) -> dict[str, Any]:
    """Request a tune and return it."""
    tune: dict[str, Any] = json.loads((await visitor.ask("job", "GET", f"/v1/jobs/{job}")).body)
    return tune


OPTIONS: Final[dict[str, tuple[str, ...]]] = {"healthz": ("--workers", str(TUNES))}
"""Options of `serve` for a load. With these, all tunes of the load run at the same time."""


def run(name: str, folder: Path, duration: Duration, *options: str) -> Table:
    """Start a service in ``folder`` with the memory that a deployment gives it, run the load
    ``name`` on it, and stop it. Return its table."""
    started = (*OPTIONS.get(name, ()), *options)
    with (
        limited(DEPLOYED_BYTES) as (before, limit),
        Service.start(folder, *started, before=before) as service,
    ):
        table = LOADS[name](service, duration)
    return replace(table, notes=[*table.notes, f"Memory limit: {limit}."])
