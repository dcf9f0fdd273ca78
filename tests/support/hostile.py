"""Send requests that are refused, odd or large to a service; print the answers, how fast they come
and what they cost: scripts/hostile [TIMES]. Return 1 where one of them is not as it must be.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import psutil

from api.body import MOST_PROFILE_VALUES, count_values
from domino_tune.base.tables import Table, print_line, print_table
from domino_tune.store.profiles import dump_profile, load_profile
from lab.verdict import Check, at_most, check_table, count_verdicts, equal, reported, table, verdict
from simulator.lookup.gemm import GemmRow
from tests.support.asked import ended, job
from tests.support.door import CASES, JSON, Case
from tests.support.processes import is_alive, wait_until
from tests.support.service import Service, job_processes, serving

MOST_CPU_S: Final = 0.5
"""Processor time that a request may cost the server's process."""
MOST_MIB: Final = 1024.0
"""Memory that the process of a large job may take."""
TOKENS: Final = 16_777_216
ROWS: Final = 52_000
"""Rows of GEMMs in the largest profile: one more thousand are too many values."""
LARGE: Final[dict[str, Any]] = {
    "model": "gpt3-13b", "profile": "h100-dgx", "seq_length": 2048, "gpus": 64,
    "global_batch_size": TOKENS // 2048,
}  # fmt: skip
MIB: Final = 1 << 20


def cpu_s(service: Service) -> float:
    """Return the processor time of the server's own process so far."""
    found = psutil.Process(service.process.pid).cpu_times()
    return float(found.user + found.system)


def at_the_door(service: Service, client: httpx.Client, times: int) -> Table:
    """Send each case of the door some times. Return the table of answers."""
    rows = []
    for name, case in CASES.items():
        took, statuses, before_s = list[float](), set[int](), cpu_s(service)
        for _ in range(times):
            began_s = time.perf_counter()
            statuses.add(case.ask(client).status_code)
            took.append(1e3 * (time.perf_counter() - began_s))
        each_s = (cpu_s(service) - before_s) / times
        good = statuses == {case.status} and each_s < MOST_CPU_S
        told = "/".join(map(str, sorted(statuses)))
        middle, cpu_ms = statistics.median(took), 1e3 * each_s
        rows.append((name, case.status, told, f"{middle:.1f}", f"{cpu_ms:.1f}", verdict(good)))
    note = f"CPU: processor time of the server's process, at most {MOST_CPU_S:g} s a request."
    columns = "what is sent|>right|>answer|>ms|>CPU ms|verdict"
    return table("Requests that are refused or odd", columns, rows, note)


def large(service: Service, client: httpx.Client) -> Table:
    """Put the largest profile and ask for a large job. Return the table of what they cost."""
    return check_table(
        "Requests that are large", [*_profile(service, client), *_job(service, client)]
    )


def largest_profile() -> bytes:
    """Return a profile of about as many values as one may have."""
    base = load_profile("h100-dgx")
    assert base.gemm
    rows = tuple(
        GemmRow(128 + one, 256, 256, "forward", "bf16", False, (256, 256, 256), 1.0, 0.1, 10)
        for one in range(ROWS)
    )
    return dump_profile(replace(base, name="large", gemm=replace(base.gemm, rows=rows)))


def _profile(service: Service, client: httpx.Client) -> list[Check]:
    content = largest_profile()
    put = Case(method="PUT", path="/v1/profiles/large", body=content, headers=JSON, status=201)
    before_s, began_s = cpu_s(service), time.perf_counter()
    status = put.ask(client).status_code
    took_s = time.perf_counter() - began_s
    values = f"{count_values(content):,} of at most {MOST_PROFILE_VALUES:,} values"
    return [
        equal(f"a profile of {values}: answer", put.status, status),
        at_most("… processor time of the server", MOST_CPU_S, cpu_s(service) - before_s, "s"),
        reported("… until the answer", f"{took_s:.1f} s"),
    ]


def _job(service: Service, client: httpx.Client) -> list[Check]:
    asked = client.post("/v1/jobs", json=job(LARGE, "layout"))
    place = asked.json()["links"]["self"]
    (pid,) = wait_until(lambda: job_processes(service.process.pid))
    before_s, began_s, peak = cpu_s(service), time.perf_counter(), 0
    while is_alive(pid):
        peak = max(peak, *_peaks(pid), 0)
        time.sleep(0.02)
    took_s, server_s = time.perf_counter() - began_s, cpu_s(service) - before_s
    state = ended(client, place)["state"]
    return [
        Check(f"a search of layouts, {TOKENS:,} tokens a step", "done", state, state == "done"),
        at_most("… memory of its process at its peak", MOST_MIB, peak / MIB, "MiB", 0),
        reported("… until it is done", f"{took_s:.0f} s"),
        reported("… processor time of the server", f"{server_s:.2f} s"),
    ]


def _peaks(pid: int) -> Iterator[int]:
    """Yield the peak of a process's resident memory so far, in bytes, unless it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return
    yield from (1024 * int(one.split()[1]) for one in lines if one.startswith("VmHWM:"))


@contextmanager
def asked() -> Iterator[tuple[Service, httpx.Client]]:
    """Run a service that takes any number of requests."""
    with (
        TemporaryDirectory() as folder,
        serving(Path(folder), workers=1, burst=100_000) as service,
        service.client() as client,
    ):
        yield service, client


def main(times: int = 5) -> int:
    """Print the tables."""
    print_line(f"The machine's load is {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")
    with asked() as (service, client):
        tables = [at_the_door(service, client, times)]
        print_table(tables[0])
        tables.append(large(service, client))
        print_table(tables[1])
    met, missed = count_verdicts(tables)
    print_line(f"{met} ok, {missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
