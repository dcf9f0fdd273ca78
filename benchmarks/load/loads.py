"""The loads: each drives a fresh service and says what it measured beside what it should be."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.bench.verdict import Check, at_most, check_table, told
from benchmarks.load import bodies, mixed
from benchmarks.load.process import Service
from benchmarks.load.traffic import Visitor, latency_ms, paced, visitor
from domino_tune.base.errors import RunError
from domino_tune.base.tables import Table

SIMULATIONS_PER_S: Final = 50.0
SIMULATION_MS: Final = 50.0
HEALTH_PER_S: Final = 50.0
HEALTH_MS: Final = 50.0
TUNES: Final = 8
WHAT_IFS_PER_S: Final = 4.0
WHAT_IF_MS: Final = 200.0
MOST_GROWTH: Final = 0.05
WARM_UPS: Final = 20
STARTED_S: Final = 60.0
STOPPED_S: Final = 10.0
MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long a load lasts, in seconds: ``mixed_s`` the mixed one, ``each_s`` the others."""

    each_s: float
    mixed_s: float

    @property
    def is_short(self) -> bool:
        """Whether it is too short for memory to have settled."""
        return self.mixed_s < 120


def simulations(service: Service, duration: Duration) -> Table:
    """The same simulation, 50 times a second."""

    async def drive(guest: Visitor) -> list[Check]:
        async def ask(number: int, due_s: float) -> None:
            await mixed.visit_simulation(guest, number, due_s)

        await warm_up(guest, ask)
        await paced(ask, SIMULATIONS_PER_S, duration.each_s)
        return latency_checks(guest, "simulation", 0.95, SIMULATION_MS)

    title = f"{SIMULATIONS_PER_S:g} simulations a second of a workload asked before"
    return visited(service, title, drive)


def what_ifs(service: Service, duration: Duration) -> Table:
    """A slider that is dragged over a 13B model."""

    async def drive(guest: Visitor) -> list[Check]:
        async def ask(number: int, due_s: float) -> None:
            await mixed.visit_what_if(guest, number, due_s)

        await warm_up(guest, ask)
        await paced(lambda n, due_s: ask(WARM_UPS + n, due_s), WHAT_IFS_PER_S, duration.each_s)
        return latency_checks(guest, "what-if", 0.95, WHAT_IF_MS)

    title = f"GPT-3 13B, {WHAT_IFS_PER_S:g} what-ifs a second, each another link"
    return visited(service, title, drive)


def healthz(service: Service, duration: Duration) -> Table:
    """Liveness while eight tunes run; they still do when the service is stopped."""

    async def drive(guest: Visitor) -> list[Check]:
        async def ask(number: int, due_s: float) -> None:
            await guest.ask("healthz", "GET", "/healthz", due_s=due_s)

        jobs = [await start_tune(guest, seed) for seed in range(TUNES)]
        await until_running(guest, jobs)
        await paced(ask, HEALTH_PER_S, duration.each_s)
        states = [(await job_now(guest, job))["state"] for job in jobs]
        return [
            *latency_checks(guest, "healthz", 0.99, HEALTH_MS),
            told("tunes at the end", listed(states)),
        ]

    return visited(service, f"/healthz {HEALTH_PER_S:g} times a second beside {TUNES} tunes", drive)


def mixture(service: Service, duration: Duration) -> Table:
    """Minutes of everything: errors and memory."""
    memory: list[int] = []

    async def drive(guest: Visitor) -> list[Check]:
        watching = asyncio.create_task(mixed.watch_memory(service, duration.mixed_s))
        await mixed.traffic(guest, duration.mixed_s)
        memory.extend(await watching)
        return [*memory_checks(memory, duration), *kinds(guest)]

    return visited(service, f"Mixed load, {duration.mixed_s / 60:.3g} minutes", drive)


LOADS: Final[dict[str, Callable[[Service, Duration], Table]]] = {
    "simulations": simulations,
    "whatif": what_ifs,
    "healthz": healthz,
    "mixed": mixture,
}


def visited(
    service: Service, title: str, drive: Callable[[Visitor], Awaitable[list[Check]]]
) -> Table:
    """The table of what ``drive`` found, errors and the way the server ended with it."""

    async def run() -> tuple[list[Check], list[str]]:
        guest = visitor(service.url)
        async with guest.client:
            return await drive(guest), guest.errors()

    checks, errors = asyncio.run(run())
    told_s = time.monotonic()
    code = service.stop()
    checks += [
        none("errors", len(errors)),
        none("exit code after SIGTERM", code),
        at_most("seconds until then", STOPPED_S, time.monotonic() - told_s, "s", 1),
    ]
    return check_table(title, checks, notes=errors[:10])


def none(what: str, value: int) -> Check:
    """A number that must be 0."""
    return Check(what=what, target="0", measured=str(value), ok=value == 0)


async def warm_up(guest: Visitor, ask: Callable[[int, float], Awaitable[None]]) -> None:
    """Ask some, one after the other, and forget what they took; errors are kept."""
    loop = asyncio.get_running_loop()
    for number in range(WARM_UPS):
        await ask(number, loop.time())
    for kind, answers in guest.answers.items():
        guest.answers[kind] = [one for one in answers if one.is_error]


def latency_checks(guest: Visitor, kind: str, share: float, limit_ms: float) -> list[Check]:
    """The percentile that counts, and two that tell more."""
    answers = guest.answers[kind]
    p = f"p{100 * share:g}"
    return [
        at_most(f"{kind}, {p} of {len(answers)}", limit_ms, latency_ms(answers, share), "ms", 1),
        told(f"{kind}, median", f"{latency_ms(answers, 0.5):.1f} ms"),
        told(f"{kind}, slowest", f"{latency_ms(answers, 1.0):.1f} ms"),
    ]


def kinds(guest: Visitor) -> list[Check]:
    """How many of each kind were asked, and their 95th percentile."""
    return [
        told(f"{kind}: {len(answers)} answers, p95", f"{latency_ms(answers, 0.95):.0f} ms")
        for kind, answers in guest.answers.items()
    ]


def memory_checks(samples: Sequence[int], duration: Duration) -> list[Check]:
    """Growth of resident memory; only told where the load was short."""
    grown, last = mixed.growth(samples), samples[-1] / MIB
    what = f"memory's growth after the first {100 * mixed.WARM_UP:g} % of the time"
    size = told("memory at the end, with workers", f"{last:.0f} MiB")
    if duration.is_short:
        return [told(what, f"{100 * grown:.2f}%"), size]
    return [at_most(what, MOST_GROWTH, grown), size]


async def start_tune(guest: Visitor, seed: int) -> str:
    """The id of a new tune that lasts longer than any load here."""
    body = bodies.tune(seed, bodies.ENDLESS_TRIALS)
    made = await guest.ask("tune", "POST", "/v1/tunes", json=body)
    if made.is_error:
        raise RunError(f"No tune was taken: {made.status} {made.body}")
    return str(json.loads(made.body)["id"])


async def until_running(guest: Visitor, jobs: Sequence[str]) -> None:
    """Return when a tune has got on, or after a minute."""
    loop = asyncio.get_running_loop()
    end = loop.time() + STARTED_S
    while loop.time() < end:
        found = [await job_now(guest, job) for job in jobs]
        if any(one["state"] == "running" and one["progress"]["done"] for one in found):
            return
        await asyncio.sleep(0.2)


async def job_now(guest: Visitor, job: str) -> dict[str, Any]:
    """A tune as it is now."""
    found: dict[str, Any] = json.loads((await guest.ask("job", "GET", f"/v1/tunes/{job}")).body)
    return found


def listed(states: Sequence[str]) -> str:
    """``2 running, 6 queued``."""
    return ", ".join(f"{count} {state}" for state, count in Counter(states).most_common())


OPTIONS: Final[dict[str, tuple[str, ...]]] = {"healthz": ("--workers", str(TUNES))}
"""What `serve` is given for a load: as many tunes compute at once as run."""


def run(name: str, folder: Path, duration: Duration, *options: str) -> Table:
    """Start a service in ``folder``, put the load ``name`` on it, stop it."""
    with Service.start(folder, *OPTIONS.get(name, ()), *options) as service:
        return LOADS[name](service, duration)
