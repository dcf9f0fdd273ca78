"""Put loads on a service and print latencies, errors and memory: ``scripts/load [NAME …]``. Each
sends requests to a new service, and returns a table of numbers and targets."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from domino_tune.base.tables import Table, print_line, print_table
from lab.verdict import Check, at_most, check_table, count_verdicts, equal, reported
from simulator.errors import unknown_name
from tests.support.load import visits
from tests.support.load.visits import Memory, Service, Visitor, call_at_rate, latency_ms

HEALTH_PER_S: Final = 50.0
TUNES: Final = 8
WARM_UP_REQUESTS: Final = 20
WARM_UP: Final = 0.2
"""Share of the time in which caches and pools fill. Memory is compared after it."""
WINDOW: Final = 0.1
"""Share of the time over which the median of memory is taken, after the warm-up and at the end."""
MIB: Final = 1 << 20
DEPLOYED_MIB: Final = 2048.0  # `mem_limit` of the API in deploy/compose.yaml
BODIES: Final = 60
OPEN: Final = 8
RETRY_S: Final = 1.0
OWNERS: Final = 50
IDLE: Final = 0.1
"""Share of the time in which a process may start, or wait for the next question."""
JUNK: Final = b'{"model":[' + b"{}," * 349_000 + b"1]}"
asked_health: Final = partial(call_at_rate, per_s=HEALTH_PER_S)


class Duration(NamedTuple):
    """Durations of loads: ``mixed_s`` of the mixed one, ``each_s`` of each other one."""

    each_s: float
    mixed_s: float


class Load(NamedTuple):
    """What ``drive`` does with a service; ``options`` of `serve` that it needs. The visitor is the
    first of ``owners``."""

    title: str
    drive: Callable[[Visitor, Service, Duration], Awaitable[list[Check]]]
    options: tuple[str, ...] = ()
    owners: int = 0


def steady(kind: str, visit: visits.Visit, per_s: float, limit_ms: float, title: str) -> Load:
    """Return a load of some requests as a warm-up, then ``per_s`` requests a second."""

    async def drive(visitor: Visitor, service: Service, duration: Duration) -> list[Check]:
        await warm_up(visitor, visit)
        visitor.answers[kind] = [one for one in visitor.answers[kind] if one.is_error]

        def call(number: int, due_s: float) -> Awaitable[object]:
            return visit(visitor, WARM_UP_REQUESTS + number, due_s)

        await call_at_rate(call, per_s, duration.each_s)
        return latency_checks(visitor, kind, 0.95, limit_ms)

    return Load(f"{title}, {per_s:g} times a second", drive)


async def warm_up(visitor: Visitor, visit: visits.Visit = visits.simulation) -> None:
    """Send some requests one by one: workers start and import what they need."""
    for number in range(WARM_UP_REQUESTS):
        await visit(visitor, number, time.monotonic())


async def beside_tunes(visitor: Visitor, service: Service, duration: Duration) -> list[Check]:
    """Request liveness while eight tunes run. They still run when the service is stopped."""
    jobs = []
    for seed in range(TUNES):
        body = visits.tune(seed, visits.ENDLESS_TRIALS)
        jobs.append(await visits.start(visitor, "tune", body, seed, time.monotonic()))

    async def looked() -> list[dict[str, Any]]:
        return [await visits.look(visitor, "tune", job) for job in jobs if job]

    end = time.monotonic() + 60.0
    while time.monotonic() < end and not any(
        job.get("state") == "running" and job["progress"]["done"] for job in await looked()
    ):
        await asyncio.sleep(0.2)
    await asked_health(partial(visits.healthz, visitor), seconds=duration.each_s)
    states = Counter(one["state"] for one in await looked())
    return [
        *latency_checks(visitor, "healthz", 0.99, 50.0),
        reported("tunes at the end", ", ".join(f"{n} {one}" for one, n in states.most_common())),
    ]


async def mixture(visitor: Visitor, service: Service, duration: Duration) -> list[Check]:
    """Send mixed traffic. Return memory and latencies."""
    await warm_up(visitor)
    every_s = min(1.0, duration.mixed_s / 20)
    memory = asyncio.create_task(watch_memory(service, duration.mixed_s, every_s))
    lasting = partial(call_at_rate, seconds=duration.mixed_s)
    every = (lasting(partial(visit, visitor), per_s) for visit, per_s in visits.MIXED)
    await asyncio.gather(*every)
    slow = {kind: latency_ms(answers, 0.95) for kind, answers in visitor.answers.items()}
    counts = {kind: f"{kind}: {len(visitor.answers[kind])} answers, p95" for kind in slow}
    return [
        *memory_checks(await memory, duration),
        *(reported(counts[kind], f"{ms:.0f} ms") for kind, ms in slow.items()),
    ]


async def junk(visitor: Visitor, service: Service, duration: Duration) -> list[Check]:
    """Send many bodies of 1 MiB at once, each of 349,000 objects, beside requests for liveness."""
    await warm_up(visitor)
    before = service.memory().total
    memory = asyncio.create_task(watch_memory(service, duration.each_s, 0.05))
    health = partial(visits.healthz, visitor)
    asked = asyncio.create_task(asked_health(health, seconds=duration.each_s))
    send = partial(visitor.client.post, "/v1/simulations", headers=visits.JSON, content=JUNK)
    answers = await asyncio.gather(*(send() for _ in range(BODIES)))
    statuses = Counter(answer.status_code for answer in answers)
    await asked
    found = ", ".join(f"{count} × {status}" for status, count in statuses.items())
    grown = (max(one.total for one in await memory) - before) / MIB
    slowest_ms = latency_ms(visitor.answers["healthz"], 1.0)
    return [
        Check("answers", "400–499", found, all(400 <= one < 500 for one in statuses)),
        at_most("growth of memory, with workers, at its peak", 100.0, grown, "MiB", 0),
        reported("healthz meanwhile, slowest", f"{slowest_ms:.0f} ms"),
    ]


async def turns(visitor: Visitor, service: Service, duration: Duration) -> list[Check]:
    """Keep large simulations of one owner open while another one asks small ones, each new, one
    after the other."""
    await warm_up(visitor)
    reader, end_s = Visitor.of(service.url, service.secrets[1]), time.monotonic() + duration.each_s

    async def read(first: int) -> None:
        number = first
        while time.monotonic() < end_s:
            body = visits.large(number)
            answer = await reader.ask("reader", "POST", "/v1/simulations", json=body)
            await asyncio.sleep(RETRY_S if answer.is_error else 0.0)
            number += OPEN

    async def ask() -> None:
        for number in count():
            await visits.new_simulation(visitor, number, time.monotonic())
            if time.monotonic() > end_s:
                return

    async with reader.client:
        await asyncio.gather(*map(read, range(OPEN)), ask())
    return [
        equal("other owner's answers that are 503", 0, visitor.refused("new simulation")),
        *latency_checks(visitor, "new simulation", 0.95, 20e3),
        reported("reader's answers", reader.statuses("reader")),
    ]


async def crowd(visitor: Visitor, service: Service, duration: Duration) -> list[Check]:
    """Send a simulation of each of many owners at once, each a new one. On a busy machine some come
    too late: that is no fault while all processes compute."""
    await warm_up(visitor)
    each, kind = [Visitor.of(service.url, one) for one in service.secrets[1:]], "new simulation"
    due_s, computing = time.monotonic(), list[int]()
    asked = asyncio.gather(*(visits.new_simulation(one, n, due_s) for n, one in enumerate(each)))
    while not asked.done():
        computing.append(service.computing())
        await asyncio.sleep(0.05)
    answers = [one.answers[kind][0] for one in each]
    seen = Visitor(client=visitor.client, answers={kind: answers})
    slots = max(2, os.cpu_count() or 1)
    idle = sum(one < slots for one in computing) / len(computing)
    for one in each:
        await one.client.aclose()
    late = seen.refused(kind)
    return [
        equal("answers 503 while a process idled", 0, late if idle > IDLE else 0),
        equal("answers that are neither 200 nor 503", 0,
              sum(one.is_error for one in answers) - late),
        reported("all answers", seen.statuses(kind)),
        reported("share of the time in which a process idled", f"{idle:.0%}"),
        *latency_checks(seen, kind, 1.0, 21e3)[:2],
    ]  # fmt: skip


async def watch_memory(service: Service, seconds: float, every_s: float) -> list[Memory]:
    """Return the resident memory of the service, again and again."""
    end, samples = time.monotonic() + seconds, list[Memory]()
    while time.monotonic() < end:
        samples.append(service.memory())
        await asyncio.sleep(every_s)
    return samples


def growth(samples: Sequence[int]) -> float:
    """Return the growth of memory from the end of the warm-up to the end, as a fraction."""
    first, width = int(WARM_UP * len(samples)), max(1, int(WINDOW * len(samples)))
    before = statistics.median(samples[first : first + width])
    return statistics.median(samples[-width:]) / before - 1


def memory_checks(samples: Sequence[Memory], duration: Duration) -> list[Check]:
    """Return the growth of resident memory, without a target where a load is too short to tell."""
    what = f"growth of memory after the first {WARM_UP:.0%} of the time"
    grown, peak = growth([one.total for one in samples]), max(one.total for one in samples)
    return [
        reported(what, f"{grown:.2%}") if duration.mixed_s < 120.0 else at_most(what, 0.05, grown),
        reported("… without jobs", f"{growth([one.kept for one in samples]):.2%}"),
        at_most("memory, with jobs, at its peak", DEPLOYED_MIB, peak / MIB, "MiB", 0),
    ]


def latency_checks(visitor: Visitor, kind: str, share: float, limit_ms: float) -> list[Check]:
    """Return a percentile with a target, the median, and the slowest answer."""
    answers = visitor.answers[kind]
    what = f"{kind}, p{100 * share:g} of {len(answers)}"
    return [
        at_most(what, limit_ms, latency_ms(answers, share), "ms", 1),
        reported(f"{kind}, median", f"{latency_ms(answers, 0.5):.1f} ms"),
        reported(f"{kind}, slowest", f"{latency_ms(answers, 1.0):.1f} ms"),
    ]


LOADS: Final[dict[str, Load]] = {
    "simulations": steady("simulation", visits.simulation, 50.0, 50.0, "A workload known before"),
    "whatif": steady(
        "what-if", visits.asked_what_if, 4.0, 200.0,
        "What-ifs of GPT-3 13B, each another link bandwidth",
    ),
    "healthz": Load(
        f"/healthz {HEALTH_PER_S:g} times a second beside {TUNES} tunes", beside_tunes,
        ("--workers", str(TUNES)),
    ),
    "turns": Load(
        f"New simulations of an owner while another has {OPEN} of 8,000,000 tokens open", turns,
        owners=2,
    ),
    "crowd": Load(f"{OWNERS} owners at once, each one new simulation", crowd, owners=1 + OWNERS),
    "junk": Load(f"{BODIES} bodies of 1 MiB that hold 349,000 objects", junk),
    "mixed": Load("Mixed load", mixture),
}  # fmt: skip


def run(name: str, folder: Path, duration: Duration, *options: str) -> Table:
    """Start a service in ``folder``, run the load on it, stop it; return its checks."""
    load = LOADS[name]

    async def drive(service: Service) -> tuple[list[Check], list[str]]:
        visitor = Visitor.of(service.url, *service.secrets[:1])
        async with visitor.client:
            return await load.drive(visitor, service, duration), visitor.errors()

    busy = f"Before it the machine's load was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    service = Service(folder, *load.options, *options, owners=load.owners)
    try:
        checks, errors = asyncio.run(drive(service))
    finally:
        stopped_s = time.monotonic()
        code = service.stop()
    checks += [
        equal("errors", 0, len(errors)), equal("exit code after SIGTERM", 0, code),
        at_most("time from SIGTERM to exit", 10.0, time.monotonic() - stopped_s, "s", 1),
    ]  # fmt: skip
    return check_table(load.title, checks, *errors[:10], busy)


def main(argv: Sequence[str] | None = None) -> int:
    """Run loads, each on a new service. Return 1 where a target is missed."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="scripts/load", description=__doc__,
        epilog="Arguments after -- go to `serve`: scripts/load mixed -- --workers 2",
    )  # fmt: skip
    add, loads = parser.add_argument, ", ".join(LOADS)
    add("names", nargs="*", metavar="NAME", help=f"loads (default: all: {loads})")
    add("--minutes", type=float, default=10.0, metavar="N",
        help="duration of the mixed load (default: 10)")  # fmt: skip
    add("--short", action="store_true", help="run each for some seconds, to see whether it works")
    options, serve_options = parser.parse_args(words[:at]), words[at + 1 :]
    duration, tables = Duration(each_s=60.0, mixed_s=60.0 * options.minutes), []
    if options.short:
        duration = Duration(each_s=3.0, mixed_s=20.0)
    for name in options.names or LOADS:
        if name not in LOADS:
            parser.error(str(unknown_name("load", name, LOADS)))
        with tempfile.TemporaryDirectory(prefix="domino_tune-load-") as folder:
            tables.append(run(name, Path(folder), duration, *serve_options))
        print_table(tables[-1])
    met, missed = count_verdicts(tables)
    print_line(f"{met} ok, {missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
