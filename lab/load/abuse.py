"""Abuse: what the weakest caller may send within its rate, beside the memory and time it costs."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from domino_tune.base.tables import Table
from domino_tune.service.sql.database import open_database
from domino_tune.service.tokens import Scope, TokenDesk
from lab.load.process import Service
from lab.load.traffic import percentile
from lab.verdict import Check, at_most, check_table, reported

MIB: Final = 1 << 20
BODIES: Final = 60
PROBE_S: Final = 0.02
SETTLE_S: Final = 1.0
START_S: Final = 3.0
"""Workers import what they need for about so long."""
TIMEOUT_S: Final = 120.0


@dataclass(kw_only=True)
class Watch:
    """What happened meanwhile: resident bytes of the service, and times of /healthz in ms."""

    before: int
    after: int = 0
    peak: int = 0
    health_ms: list[float] = field(default_factory=list)

    def checks(self, most_mib: float, health_ms: float) -> list[Check]:
        """Return growth and liveness beside their targets."""
        grown, kept = ((size - self.before) / MIB for size in (self.peak, self.after))
        return [
            at_most("growth of memory, with workers, at its peak", most_mib, grown, "MiB", 0),
            reported("growth of memory afterwards", f"{kept:.0f} MiB"),
            at_most(
                f"/healthz meanwhile, p99 of {len(self.health_ms)}", health_ms,
                percentile(self.health_ms, 0.99), "ms", 1,
            ),
            reported("/healthz meanwhile, slowest", f"{max(self.health_ms):.1f} ms"),
        ]  # fmt: skip


@contextmanager
def watching(service: Service) -> Iterator[Watch]:
    """Yield a watch that samples memory and /healthz, while the block runs and a second longer.

    Liveness is probed by a process of its own, as Kubernetes does: beside the block's threads a
    probe would wait for their interpreter, too.
    """
    watch, over = Watch(before=_settled(service)), threading.Event()

    def memory() -> None:
        while not over.wait(PROBE_S):
            watch.peak = max(watch.peak, service.rss_bytes())

    spawned = multiprocessing.get_context("spawn")
    here, there = spawned.Pipe()
    prober = spawned.Process(target=_probe, args=(service.url, there))
    prober.start()
    here.recv()  # it is ready
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(memory)
        try:
            yield watch
            time.sleep(SETTLE_S)
        finally:
            over.set()
            here.send(None)
            watch.health_ms = here.recv()
            prober.join()
    done.result()
    watch.after = service.rss_bytes()


def _settled(service: Service) -> int:
    """Wait until the service's workers have begun; return its resident bytes."""
    sizes = [service.rss_bytes()]
    while len(sizes) < 2 or sizes[-1] - sizes[-2] > MIB:
        time.sleep(START_S)
        sizes.append(service.rss_bytes())
    return sizes[-1]


def _probe(url: str, pipe: Connection) -> None:
    """Ask for /healthz until something comes through the pipe; send the times in ms."""
    host, times_ms = urlsplit(url), list[float]()
    pipe.send(None)
    while not pipe.poll(PROBE_S):
        began = time.perf_counter()
        connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=TIMEOUT_S)
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        connection.close()
        times_ms.append(1e3 * (time.perf_counter() - began))
    pipe.recv()
    pipe.send(times_ms)


def send(service: Service, method: str, path: str, body: bytes, secret: str) -> int:
    """Return the status of one request on a connection of its own; 0 where it was cut off."""
    host = urlsplit(service.url)
    connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
    try:
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def bodies(service: Service, secret: str) -> Table:
    """Send sixty bodies of 1 MiB, each of 349,000 objects, with a token that may only read."""
    junk = b'{"model":[' + b"{}," * 349_000 + b"1]}"
    sent = [("POST", "/v1/simulations", junk)] * BODIES
    title = f"{BODIES} bodies of 1 MiB that hold 349,000 objects, read scope"
    return _at_once(service, secret, sent, title, most_mib=100, health_ms=50)


def profiles(service: Service, secret: str) -> Table:
    """Upload junk of 15 MB as profiles: numbers, lists, objects, one long text."""
    junk = junk_profiles()
    sent = [("PUT", f"/v1/profiles/junk-{index}", body) for index, body in enumerate(junk)]
    title = f"{len(sent)} junk profiles of 15 MB, admin scope"
    return _at_once(service, secret, sent, title, most_mib=300, health_ms=100)


def _at_once(
    service: Service, secret: str, requests: Sequence[tuple[str, str, bytes]], title: str,
    *, most_mib: float, health_ms: float,
) -> Table:  # fmt: skip
    """Send all requests at once. All must be refused with a 4xx, within memory and liveness."""
    with watching(service) as watch, ThreadPoolExecutor(len(requests)) as threads:
        sent = [threads.submit(send, service, *request, secret) for request in requests]
    statuses = [one.result() for one in sent]
    counts = ", ".join(f"{count} × {status}" for status, count in Counter(statuses).items())
    refused = all(400 <= status < 500 for status in statuses)
    answers = Check(what="answers", target="400–499", measured=counts, ok=refused)
    return check_table(title, [*watch.checks(most_mib, health_ms), answers])


def junk_profiles() -> list[bytes]:
    """Return four files of 15 MB that are JSON and no profiles."""
    numbers = ",".join(f"{1e6 / (n + 1):.9e}"[:14].ljust(14, "0") for n in range(1_000_000))
    text = "x" * 15_000_000
    return [
        b'{"machine":{"details":[' + numbers.encode() + b"]}}",
        b'{"gemm":{"rows":[' + b"{}," * 5_000_000 + b"{}]}}",
        b'{"gemm":{"rows":[' + b"[]," * 5_000_000 + b"[]]}}",
        json.dumps({"machine": {"gpu": text}}).encode(),
    ]


ABUSE: Final[dict[str, tuple[Scope, Callable[[Service, str], Table]]]] = {
    "bodies": ("read", bodies),
    "profiles": ("admin", profiles),
}
"""Abuses by name: the scope of the caller's token, and the load."""


def make_token(folder: Path, scope: Scope) -> str:
    """Return the secret of a new token in the database of a service in ``folder``."""
    database = open_database(f"sqlite:///{folder / 'service.db'}")
    try:
        return TokenDesk(database).add("abuser", "abuser", scope)
    finally:
        database.close()
